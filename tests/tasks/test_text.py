"""Rows of joined documents: packed, or one segment that models are given no segments for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from in_order import InOrder

from t2x.base.errors import UserError
from t2x.data import (
  Batches,
  BestFitDocuments,
  Bytes,
  FullRows,
  RestartPositions,
  SampledPieces,
  TextFiles,
)
from t2x.layers import (
  MLP,
  TUPE,
  ALiBi,
  Blockwise,
  Dense,
  LearnedPositions,
  MultiHeadAttention,
  RoPE,
  RowLayout,
  ShawPositions,
  Sinusoidal,
  T5Bias,
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
  return dataclasses.replace(TASKS[name], packing=FullRows)


def model_of(name, encoding=None, kernel=None):
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2, kernel=kernel or Dense()),
    feed_forward=functools.partial(MLP, hidden_dim=16),
  )
  body = functools.partial(
    BODIES[name],
    stack=functools.partial(Stack, num_layers=1, blocks=[block]),
    encoding=encoding or functools.partial(LearnedPositions, max_length=LENGTH),
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


def test_bits_per_byte_is_left_out_where_tokens_or_characters_of_the_split_are():
  task, means = one_segment('causal'), {'loss': (1.0, 1.0)}
  info = {'bytes': 4, 'tokens': 1}
  assert 'bits_per_byte' in task.summarise(means, info)
  # Of two tokens one has no weight.
  for missing in ({'lossy_texts': 1}, {'cut_tokens': 3}, {'tokens': 2}):
    assert 'bits_per_byte' not in task.summarise(means, info | missing)


def test_rows_with_room_for_other_pieces_are_not_full():
  with pytest.raises(UserError, match=r'CausalLM\.packing = @FullRows needs full rows'):
    CausalLM(**TEXT, pieces=SampledPieces(), packing=FullRows)


ENCODINGS = {
  'learned': functools.partial(LearnedPositions, max_length=LENGTH),
  'sinusoidal': Sinusoidal,
  'rope': RoPE,
  't5': functools.partial(T5Bias, num_heads=2, bidirectional=False),
  'alibi': functools.partial(ALiBi, num_heads=2),
  'shaw': functools.partial(ShawPositions, head_dim=4, max_distance=4),
  'tupe': functools.partial(TUPE, num_heads=2, max_length=LENGTH),
}


@pytest.fixture(scope='module')
def documents(tmp_path_factory):
  """The rows of a task whose documents, of 7 tokens with eos, see each other."""
  folder = tmp_path_factory.mktemp('documents')
  (folder / 'text.txt').write_text('\n'.join(f'text {i}' for i in range(10, 30)))
  source = TextFiles(train=str(folder / 'text.txt'), per_line=True)
  task = CausalLM(source=source, tokenizer=Bytes(), length=LENGTH, packing=RestartPositions)
  task = task.bound(task.fit_tokenizer())
  rows = task.rows('train')
  return task, Batches(rows, batch_size=ROWS, seed=0, order=InOrder(len(rows)))[0]


def test_positions_restart_at_each_document_in_rows_of_one_segment(documents):
  _, batch = documents
  assert {name: value.shape for name, value in batch.items()} == dict.fromkeys(
    ('tokens', 'segments', 'positions'), (ROWS, LENGTH)
  )
  assert (batch['segments'] == 1).all()
  place = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 8
  place[1] = [*range(4), *range(8)]  # The second part of a document is numbered from 0 again.
  np.testing.assert_array_equal(batch['positions'][:2], [[*range(8), *range(4)], place[1]])


@pytest.mark.parametrize(
  ('name', 'kernel'),
  [*((name, Dense()) for name in ENCODINGS), *((n, Blockwise(4, 4)) for n in ('rope', 'alibi'))],
)
def test_documents_that_see_each_other_are_encoded_by_their_own_positions(documents, name, kernel):
  task, batch = documents
  batch = {name: jnp.asarray(array) for name, array in batch.items()}
  model = model_of('causal', ENCODINGS[name], kernel)

  def hidden(tokens, positions):
    out = task.hidden(model, batch | {'tokens': tokens, 'positions': positions}, None)
    return np.asarray(out.x)

  x = hidden(batch['tokens'], batch['positions'])
  plain = dataclasses.replace(task, packing=FullRows).hidden(model, batch, None).x
  slots = jnp.broadcast_to(jnp.arange(LENGTH), (ROWS, LENGTH))
  np.testing.assert_allclose(hidden(batch['tokens'], slots), plain, atol=1e-5)
  # The first document is the same; the second has other positions.
  np.testing.assert_allclose(x[0, :8], plain[0, :8], atol=1e-5)
  assert np.abs(x[0, 8:] - plain[0, 8:]).max() > 1e-4
  # A token changes the vectors of all later tokens, also of the next document, and of no earlier ones.
  changed = hidden(batch['tokens'].at[0, 3].set(99), batch['positions'])
  moved = np.abs(changed[0] - x[0]).max(axis=-1)
  assert (moved[4:] > 1e-7).all() and (moved[:4] == 0).all()


def test_documents_are_packed_by_the_plan_of_the_config(documents):
  task = dataclasses.replace(documents[0], packing=functools.partial(BestFitDocuments, window=2))
  assert task.plan == BestFitDocuments(LENGTH, window=2)
  assert not task.one_segment
  tokens = task.row_tokens(documents[1])
  assert tokens.layout is RowLayout.PACKED and tokens.encoded is None
