"""The train state: initial values and keys by name."""

import functools

import jax
import numpy as np

from t2x.arrays import named_leaves
from t2x.layers import MLP, LayerNorm, MultiHeadAttention, TokenEmbedding
from t2x.models import Block, Decoder, LanguageModel, LMHead, Stack
from t2x.train import Constant, Experiment, Trainer
from t2x.train.state import init_function, optimizer_for

KEY = jax.random.key(5)


def state(num_layers=2, head_norm=None, **settings):
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2, qk_norm=head_norm),
    feed_forward=functools.partial(MLP, hidden_dim=16),
  )
  stack = functools.partial(Stack, num_layers=num_layers, blocks=[block])
  model = functools.partial(
    LanguageModel,
    d_model=8,
    embedding=functools.partial(TokenEmbedding, vocab_size=16),
    body=functools.partial(Decoder, stack=stack),
    **settings,
  )
  trainer = Trainer(num_steps=1, batch_size=1, schedule=Constant(peak=1e-3), ema_decay=0.9)
  experiment = Experiment(model=model, trainer=trainer)
  return jax.jit(init_function(experiment, optimizer_for(experiment)))(KEY)


def test_additions_to_a_model_leave_its_initial_values_and_the_key_of_training():
  small, large = state(), state(num_layers=3, head_norm=LayerNorm, head=LMHead)
  np.testing.assert_array_equal(*(jax.random.key_data(one.key) for one in (small, large)))
  found = dict(named_leaves(large.model))
  for name, value in named_leaves(small.model):
    np.testing.assert_array_equal(found[name][: len(value)], value, err_msg=name)
  assert len(found) > len(list(named_leaves(small.model)))


def test_the_moving_average_starts_with_the_initial_values():
  built = state()
  for (name, value), average in zip(
    named_leaves(built.model), jax.tree.leaves(built.ema), strict=True
  ):
    np.testing.assert_array_equal(average, value, err_msg=name)
