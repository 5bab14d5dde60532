"""What an experiment is compiled to: initial values and keys by name, and how often it is traced."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.data import Bytes, TextFiles
from t2x.layers import MLP, LayerNorm, MultiHeadAttention, TokenEmbedding
from t2x.models import Block, Decoder, LanguageModel, LMHead, Stack
from t2x.parallel import batch_sharding
from t2x.tasks import CausalLM
from t2x.train import Constant, Experiment, Program, Trainer
from t2x.train.checks import check_evaluations


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
  built, _ = Program(Experiment(model=model, trainer=trainer)).init(5)
  return built


def test_additions_to_a_model_leave_its_initial_values_and_the_key_of_training():
  small, large = state(), state(num_layers=3, head_norm=LayerNorm, head=LMHead)
  np.testing.assert_array_equal(*(jax.random.key_data(one.key) for one in (small, large)))
  for name, value in small.params.items():
    np.testing.assert_array_equal(large.params[name][: len(value)], value, err_msg=name)
  assert len(large.params) > len(small.params)


@pytest.mark.parametrize('accumulate', [1, 2])
def test_the_train_step_and_the_evaluation_step_are_each_traced_once(accumulate, monkeypatch):
  traced = []
  sums = CausalLM.sums

  def counted(self, model, batch, key):
    traced.append('evaluation' if key is None else 'training')
    return sums(self, model, batch, key)

  monkeypatch.setattr(CausalLM, 'sums', counted)
  task = CausalLM(source=TextFiles(train='none'), tokenizer=Bytes(), length=8)
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2),
    feed_forward=functools.partial(MLP, hidden_dim=16),
  )
  stack = functools.partial(Stack, num_layers=1, blocks=[block])
  model = functools.partial(
    LanguageModel,
    d_model=8,
    embedding=functools.partial(TokenEmbedding, vocab_size=261),
    body=functools.partial(Decoder, stack=stack),
  )
  trainer = Trainer(num_steps=3, batch_size=4, accumulate=accumulate)
  task = task.bound(Bytes().train([]))
  program = Program(Experiment(model=model, task=task, trainer=trainer))
  rows = {name: jnp.ones(one.shape, one.dtype) for name, one in program.batch().items()}
  rows = jax.device_put(rows, batch_sharding(program.mesh))
  check_evaluations(program)
  state, frozen = program.init(0)
  step = program.train_step()
  for _ in range(3):
    state, _ = step(state, frozen, rows)
  evaluate = program.eval_step()
  for _ in range(2):
    evaluate(program.eval_params(state, frozen), rows)
  assert program.memory_bytes() > 0
  assert sorted(traced) == ['evaluation', 'training']
