"""Mixtures take rows in proportion to the weights, each source in its own epochs, by index arithmetic."""

import collections
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_source import Drawing

from t2x.base.errors import UserError
from t2x.data import (
  Batches,
  FixedWeights,
  Interleaved,
  MixtureRows,
  MixtureTransform,
  ProportionalWeights,
  StagedWeights,
  prefetch,
)

WEIGHTS = st.lists(st.floats(1e-4, 1e4) | st.just(0.0), min_size=1, max_size=60).filter(any)


def rows(**sizes):
  return MixtureRows({name: [{'x': i} for i in range(size)] for name, size in sizes.items()})


def order(weights, batch_size=4, seed=0, **sizes):
  data = rows(**sizes)
  stages = weights.stages({name: len(part) for name, part in data.sources.items()})
  return Interleaved(data, stages, batch_size, seed)


def read(interleaved, start, stop):
  """(source, epoch, row of the source) of the numbers of a stream."""
  epochs, indices = interleaved(range(start, stop))
  sources = np.searchsorted(interleaved.starts, indices, side='right') - 1
  rows = indices - np.array(interleaved.starts)[sources]
  return list(zip(sources.tolist(), epochs.tolist(), rows.tolist(), strict=True))


def many(weights):
  """A mixture with these weights; sources without a weight are left out."""
  names = {f's{i}': weight for i, weight in enumerate(weights) if weight}
  return order(FixedWeights(names), **dict.fromkeys(names, 3)), np.array(list(names.values()))


@settings(max_examples=60)
@given(WEIGHTS, st.integers(1, 400), st.integers(1, 40))
def test_any_part_of_the_stream_is_read_without_the_rest(weights, start, count):
  stream, _ = many(weights)
  assert read(stream, 0, start + count)[start:] == read(stream, start, start + count)
  taken = collections.Counter(source for source, _, _ in read(stream, 0, start))
  assert stream.counts(start) == [taken[i] for i in range(len(stream.names))]


@settings(max_examples=100)
@given(WEIGHTS, st.integers(0, 10**12))
def test_counts_follow_the_weights_everywhere(weights, number):
  stream, weights = many(weights)
  shares = weights / weights.sum()
  counts = np.array(stream.counts(number))
  assert counts.sum() == number
  # Shares are multiples of 2^-30. Up to K sources are ahead of their shares by up to a row.
  error = number * 2.0**-30 + 1 + shares * len(weights)
  assert (np.abs(counts - shares * number) <= error).all()


@pytest.mark.parametrize('weights', [[0.5] + 50 * [0.01], 100 * [1.0], [1e-6, 1.0]])
def test_sources_with_equal_weights_do_not_come_together(weights):
  stream, weights = many(weights)
  shares = weights / weights.sum()
  worst = max(
    np.abs(np.array(stream.counts(number)) - shares * number).max() for number in range(300)
  )
  assert worst < 2


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 2**31 - 1))
def test_each_source_has_its_own_epochs_in_its_own_order(sizes, seed):
  names = {f's{i}': size for i, size in enumerate(sizes)}
  stream = order(ProportionalWeights(temperature=2.0), seed=seed, **names)
  by_source = collections.defaultdict(list)
  for source, epoch, row in read(stream, 0, 100):
    by_source[source].append((epoch, row))
  for source, pairs in by_source.items():
    size = sizes[source]
    assert [epoch for epoch, _ in pairs] == [i // size for i in range(len(pairs))]
    for start in range(0, len(pairs) - size + 1, size):
      assert sorted(row for _, row in pairs[start : start + size]) == list(range(size))


def test_the_order_of_a_source_does_not_depend_on_the_other_sources():
  alone = [row for _, _, row in read(order(ProportionalWeights(), a=50), 0, 50)]
  mixed = read(order(FixedWeights({'b': 1.0, 'a': 2.0}), b=7, a=50), 0, 75)
  assert [row for source, _, row in mixed if source == 1] == alone
  other = [row for _, _, row in read(order(ProportionalWeights(), seed=1, a=50), 0, 50)]
  assert other != alone


def test_stages_begin_at_their_step_and_epochs_continue():
  weights = StagedWeights(
    [(0, FixedWeights({'a': 1.0, 'b': 0.0})), (5, FixedWeights({'a': 1.0, 'b': 3.0}))]
  )
  stream = order(weights, batch_size=4, a=6, b=9)
  assert stream.counts(20) == [20, 0]
  assert stream.counts(40) == [25, 15]
  assert read(stream, 0, 60)[17:] == read(stream, 17, 60)
  places = [6 * epoch for source, epoch, _ in read(stream, 0, 60) if source == 0]
  assert places == [6 * (i // 6) for i in range(len(places))]


@pytest.mark.parametrize(
  ('weights', 'shares'),
  [
    (ProportionalWeights(), [0.1, 0.9]),
    (ProportionalWeights(limit=300), [0.25, 0.75]),
    (ProportionalWeights(temperature=2.0), [0.25, 0.75]),
    (ProportionalWeights(limit=100), [0.5, 0.5]),
    (FixedWeights({'b': 3.0, 'a': 1.0}), [0.25, 0.75]),
  ],
)
def test_weights(weights, shares):
  stream = order(weights, a=100, b=900)
  np.testing.assert_allclose(np.array(stream.counts(10**6)) / 10**6, shares, atol=2e-6)


def test_rows_of_all_sources_with_their_transforms():
  data = rows(a=2, b=3)
  transform = MixtureTransform((None, lambda row, rng: {'x': 10 * row['x']}), (1.0, 0.5))
  batches = Batches(
    data, transform, batch_size=5, seed=0, order=order(ProportionalWeights(), a=2, b=3)
  )
  batch = batches[0]
  expected = {(0, 0, 1.0), (0, 1, 1.0), (1, 0, 0.5), (1, 10, 0.5), (1, 20, 0.5)}
  assert (
    set(zip(*(batch[name].tolist() for name in ('task', 'x', 'loss_weight')), strict=True))
    == expected
  )
  assert (batch['task'].dtype, batch['loss_weight'].dtype) == (np.int32, np.float32)
  assert [data[-1], data[0]] == [{'x': 2, 'task': 1}, {'x': 0, 'task': 0}]
  with pytest.raises(IndexError, match='out of range'):
    data[5]


@pytest.mark.parametrize('num_workers', [0, 2])
def test_any_number_of_processes_and_workers_reads_the_same(num_workers):
  data, transform = rows(a=5, b=3), MixtureTransform((Drawing(), Drawing()), (1.0, 1.0))

  def batches(index, count):
    mixed = order(ProportionalWeights(temperature=3.0), batch_size=4, a=5, b=3)
    return Batches(
      data, transform, batch_size=4, seed=7, order=mixed, process_index=index, process_count=count
    )

  whole = [batches(0, 1)[step] for step in range(3, 9)]
  halves = [list(prefetch(batches(i, 2), 3, 9, num_workers)) for i in (0, 1)]
  for step, expected in enumerate(whole):
    for name, value in expected.items():
      parts = [halves[i][step][name] for i in (0, 1)]
      np.testing.assert_array_equal(np.concatenate(parts), value)


def test_the_fingerprint_follows_names_rows_weights_and_stages():
  def fingerprint(weights, **sizes):
    mixed = order(weights, **sizes)
    return Batches(rows(**sizes), batch_size=4, seed=0, order=mixed).fingerprint

  fixed = FixedWeights({'a': 1.0, 'b': 1.0})
  found = [
    fingerprint(fixed, a=5, b=5),
    fingerprint(ProportionalWeights(), a=5, b=6),
    fingerprint(ProportionalWeights(), a=5, c=5),
    fingerprint(FixedWeights({'a': 1.0, 'b': 2.0}), a=5, b=5),
    fingerprint(StagedWeights([(0, fixed), (2, ProportionalWeights())]), a=5, b=5),
  ]
  assert len(set(found)) == 5
  assert fingerprint(ProportionalWeights(), a=5, b=5) == found[0]


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: FixedWeights({'a': 0.0}), 'one of them must be above 0'),
    (
      lambda: order(FixedWeights({'a': 1.0}), a=1, b=1),
      "FixedWeights.weights has 'a', but the mixture has 'a', 'b'",
    ),
    (lambda: order(FixedWeights({'a': 1.0, 'b': 0.0}), a=1, b=1), "remove 'b'"),
    (lambda: order(FixedWeights({'a': 1.0, 'b': 1.0}), a=1, b=0), "'b' has no rows"),
    (lambda: StagedWeights([(1, ProportionalWeights())]), 'must be 0 and then increase'),
    (
      lambda: order(StagedWeights([(0, StagedWeights([(0, ProportionalWeights()), (1, ProportionalWeights())]))]), a=1),
      'list its stages instead',
    ),
  ],
)  # fmt: skip
def test_unsupported_calls_are_refused(make, message):
  with pytest.raises(UserError, match=re.escape(message)):
    make()
