"""Rows of joined documents: packed, or one segment that models are given no segments for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.data import Bytes, SampledPieces, TextFiles
from t2x.errors import UserError
from t2x.layers import (
  MLP,
  LearnedPositions,
  MultiHeadAttention,
  RowLayout,
  TokenEmbedding,
  named_key,
)
from t2x.models import Block, Decoder, Encoder, LanguageModel, Stack
from t2x.tasks import CausalLM, MaskedLM

LENGTH, ROWS, VOCAB = 12, 4, 300
TEXT = {'source': TextFiles(train='none'), 'tokenizer': Bytes(), 'length': LENGTH}
TASKS = {'causal': CausalLM(**TEXT), 'masked': MaskedLM(**TEXT, rate=0.3)}
BODIES = {'causal': Decoder, 'masked': Encoder}


def one_segment(name):
  return dataclasses.replace(TASKS[name], separate_documents=False)


def model_of(name):
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2),
    feed_forward=functools.partial(MLP, hidden_dim=16),
  )
  body = functools.partial(
    BODIES[name],
    stack=functools.partial(Stack, num_layers=1, blocks=[block]),
    encoding=functools.partial(LearnedPositions, max_length=LENGTH),
  )
  embedding = functools.partial(TokenEmbedding, vocab_size=VOCAB)
  return LanguageModel(d_model=8, embedding=embedding, body=body, rngs=nnx.Rngs(0))


def batch_of(task):
  """Full rows of one document, and a last row of padding."""
  rng = np.random.default_rng(0)
  batch = {
    'tokens': rng.integers(5, 250, (ROWS, LENGTH)),
    'segments': np.ones((ROWS, LENGTH)),
    'positions': np.tile(np.arange(LENGTH), (ROWS, 1)),
  }
  if isinstance(task, MaskedLM):
    shape = ROWS, task.max_predictions
    batch['masked_positions'] = rng.integers(0, LENGTH, shape)
    batch['labels'] = rng.integers(5, 250, shape)
    batch['weights'] = np.ones(shape)
  for array in batch.values():
    array[-1] = 0
  spec = task.spec(ROWS)
  assert set(spec) == set(batch)
  return {name: jnp.asarray(batch[name], one.dtype) for name, one in spec.items()}


def loss(task, model, batch):
  """The summed loss and its gradient."""
  key = named_key(jax.random.key(0), 'dropout')
  call = jax.jit(jax.value_and_grad(lambda m: task.sums(m, batch, key).metrics['loss'][0]))
  return call(model)


@pytest.mark.parametrize('name', TASKS)
def test_the_loss_of_full_rows_is_the_same_without_segments(name):
  batch, model = batch_of(TASKS[name]), model_of(name)
  packed, plain = (loss(task, model, batch) for task in (TASKS[name], one_segment(name)))
  for one, other in zip(jax.tree.leaves(packed), jax.tree.leaves(plain), strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize('name', TASKS)
def test_rows_of_padding_have_weight_0_and_do_not_matter_without_segments(name):
  task, model = one_segment(name), model_of(name)
  batch = batch_of(task)
  changed = batch | {'tokens': batch['tokens'].at[-1].set(7)}
  assert task.weights(batch)['loss'] == task.target_weights(batch)[:-1].sum() > 0
  for one, other in zip(
    *(jax.tree.leaves(loss(task, model, b)) for b in (batch, changed)), strict=True
  ):
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert jnp.isfinite(one).all()


@pytest.mark.parametrize('name', TASKS)
def test_rows_of_one_segment_are_plain_rows(name):
  task = one_segment(name)
  tokens = task.row_tokens(batch_of(task))
  assert task.plan.one_segment and task.one_segment
  assert tokens.segments is None and tokens.layout is RowLayout.CONTIGUOUS
  packed = TASKS[name].row_tokens(batch_of(task))
  assert packed.segments is not None and packed.layout is RowLayout.PACKED


def test_bits_per_byte_is_left_out_where_tokens_of_the_split_are():
  task, means = one_segment('causal'), {'loss': (1.0, 1.0)}
  assert 'bits_per_byte' in task.summarise(means, {'bytes': 4, 'cut_tokens': 0})
  assert 'bits_per_byte' not in task.summarise(means, {'bytes': 4, 'cut_tokens': 3})


def test_rows_with_room_for_other_pieces_are_not_full():
  with pytest.raises(UserError, match=r'CausalLM\.separate_documents = False needs full rows'):
    CausalLM(**TEXT, pieces=SampledPieces(), separate_documents=False)
