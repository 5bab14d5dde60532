"""Batches of rows of similar length."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import (
  TSV,
  Batches,
  Buckets,
  ByLength,
  Bytes,
  CutToBucket,
  PackPairs,
  PadPairs,
  SampledPieces,
  token_rows,
)
from t2x.layers import MLP, MultiHeadAttention, Sinusoidal, TokenEmbedding
from t2x.models import Block, Decoder, Encoder, EncoderDecoder, Stack, TiedHead
from t2x.tasks import Mixture, Translation

BYTES = Bytes().train([])
BUCKETS = Buckets({'source': 32, 'target': 24}, (8, 16))


@pytest.fixture(scope='module')
def pairs(tmp_path_factory):
  """Pairs of 1 to 30 and 1 to 22 characters, of which most are short."""
  rng = np.random.default_rng(0)
  lines = []
  for _ in range(200):
    lengths = [1 + int(rng.integers(size) * rng.random() ** 2) for size in (30, 22)]
    lines.append('\t'.join('x' * length for length in lengths))
  path = tmp_path_factory.mktemp('pairs') / 'pairs.tsv'
  path.write_text('\n'.join(lines))
  return TSV(train=str(path), validation=str(path))


@pytest.fixture(scope='module')
def rows(pairs, tmp_path_factory):
  return token_rows(pairs, 'train', BYTES, PadPairs(32, 24), tmp_path_factory.mktemp('cache'))


def test_a_row_is_in_the_first_bucket_that_is_long_enough(rows):
  found = BUCKETS.buckets_of(rows)
  assert len(found) == len(rows) == 200
  assert set(found.tolist()) == {0, 1, 2}
  assert [BUCKETS.sizes(i) for i in range(3)] == [
    {'source': 8, 'target': 8},
    {'source': 16, 'target': 16},
    {'source': 32, 'target': 24},
  ]
  for row, bucket in zip(rows, found, strict=True):
    used = [np.count_nonzero(row[f'{side}_segments']) for side in ('source', 'target')]
    fits = [max(used) <= length for length in (8, 16, 32)]
    assert fits.index(True) == bucket


def batches(rows, index=0, count=1, seed=3):
  order = ByLength(BUCKETS.buckets_of(rows), 8, seed)
  return Batches(
    rows,
    CutToBucket(BUCKETS),
    batch_size=8,
    seed=seed,
    order=order,
    process_index=index,
    process_count=count,
  )


def test_batches_are_cut_to_their_bucket_and_lose_nothing(rows):
  shapes = set()
  for step in range(20):
    made = batches(rows)
    batch, (_, indices) = made[step], made.indices(step)
    length = batch['source'].shape[1]
    shapes.add((length, batch['target'].shape[1]))
    for place, index in enumerate(indices):
      whole = rows[int(index)]
      assert batch.keys() == whole.keys()
      for name, array in batch.items():
        kept = array.shape[1]
        np.testing.assert_array_equal(array[place], whole[name][:kept])
        assert not whole[name][kept:].any()
  assert shapes == {(8, 8), (16, 16), (32, 24)}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 5))
def test_any_step_and_process_is_read_without_the_others(step, seed):
  order = ByLength(np.arange(97) % 7 // 3, 8, seed)
  start = 8 * step
  epochs, whole = order(range(start, start + 8))
  halves = [order(range(start + 4 * i, start + 4 * i + 4))[1] for i in (0, 1)]
  np.testing.assert_array_equal(np.concatenate(halves), whole)
  _, later = order(range(start, start + 24))
  np.testing.assert_array_equal(later[:8], whole)
  assert len({int(i) % 7 // 3 for i in whole}) == 1
  assert epochs.shape == (8,)


def test_all_rows_are_read_equally_often(rows):
  order = ByLength(BUCKETS.buckets_of(rows), 8, 0)
  counts = np.bincount(order(range(8 * 250))[1], minlength=len(rows))
  assert counts.sum() == 2000
  assert counts.min() >= 9 and counts.max() <= 11


def task(pairs, **settings):
  shared = {'tokenizer': Bytes(), 'source_length': 32, 'target_length': 24, 'buckets': [8, 16]}
  return Translation(source=pairs, **shared | {'packing': PadPairs} | settings)


def test_the_loss_of_a_truncated_batch_equals_that_of_the_full_batch(pairs, monkeypatch, tmp_path):

  monkeypatch.setenv('T2X_CACHE', str(tmp_path))
  attention = functools.partial(MultiHeadAttention, num_heads=2)
  block = functools.partial(
    Block, mixer=attention, feed_forward=functools.partial(MLP, hidden_dim=16)
  )
  stack = functools.partial(Stack, num_layers=1, blocks=[block])
  crossed = functools.partial(
    Stack, num_layers=1, blocks=[functools.partial(block, cross=attention)]
  )
  model = EncoderDecoder(
    d_model=16,
    embedding=functools.partial(TokenEmbedding, vocab_size=BYTES.vocab_size),
    encoder=functools.partial(Encoder, stack=stack, encoding=Sinusoidal),
    decoder=functools.partial(Decoder, stack=crossed, encoding=Sinusoidal),
    head=TiedHead,
    rngs=nnx.Rngs(0),
  )
  made = task(pairs).bound(BYTES)
  rows = made.rows('train')
  cut = made.batches(rows, batch_size=8, seed=0)
  whole = Batches(rows, batch_size=8, seed=0, order=cut.order)
  assert made.row_lengths == [8, 8, 16, 16, 32, 24]
  loss = jax.jit(lambda model, batch: made.sums(model, batch, None).metrics['loss'])
  seen = set()
  for step in range(6):
    seen.add(cut[step]['source'].shape[1])
    pair = [jax.tree.map(jnp.asarray, one[step]) for one in (cut, whole)]
    losses = [loss(model, batch) for batch in pair]
    np.testing.assert_allclose(*losses, rtol=2e-6)
  assert len(seen) > 1
  assert made.transform(train=False) is None


def test_settings_without_effect_are_refused(pairs):
  for changed, message in [
    ({'packing': PackPairs}, 'Translation.buckets needs one pair per row'),
    ({'pieces': SampledPieces(rate=0.1)}, 'leave out Translation.pieces'),
    ({'buckets': [32, 64]}, 'Translation.buckets = [32, 64]: one must be below 32'),
  ]:
    with pytest.raises(UserError, match=re.escape(message)):
      task(pairs, **changed)
  with pytest.raises(UserError, match="'a'] has length buckets: rows of a mixture have one length"):
    Mixture(tasks={'a': task(pairs)})
  assert dataclasses.replace(task(pairs), buckets=()).row_lengths == ()
