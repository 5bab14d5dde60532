"""Best-fit packing splits no document that fits, and chooses the row with the least room."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_packing import EOS, check_row, ids, pack, pair, pairs_of

from t2x.base.errors import UserError
from t2x.data import BestFitDocuments, BestFitPairs, ConcatenateAndSplit, JoinedPairs, PackPairs
from t2x.data.best_fit import best_fit_decreasing
from t2x.data.packing import add_positions
from t2x.data.tokenizers.base import SpecialIds


@given(st.lists(ids, max_size=30), st.integers(1, 15), st.integers(1, 4))
def test_only_documents_longer_than_a_row_are_split(documents, length, window):
  plan = BestFitDocuments(length, window=window)
  rows, counts = pack(plan, [{'text': document} for document in documents])
  segments = []
  for row in rows:
    check_row(row, 'tokens', length)
    for segment in range(1, row['segments'].max() + 1):
      segments.append(tuple(row['tokens'][row['segments'] == segment].tolist()))
  whole = [[*document, EOS] for document in documents if document]
  pieces = [tuple(d[i : i + length]) for d in whole for i in range(0, len(d), length)]
  assert collections.Counter(segments) == collections.Counter(pieces)
  assert counts['divided'] == sum(len(document) > length for document in whole)
  assert counts['empty'] == len(documents) - len(whole)


@given(st.lists(ids, max_size=30), st.integers(1, 15))
def test_documents_that_are_concatenated_and_in_two_rows_are_counted(documents, length):
  rows, counts = pack(ConcatenateAndSplit(length), [{'text': d} for d in documents])
  # A row that does not end with an eos ends inside of a document.
  ends = [row['tokens'][np.count_nonzero(row['segments']) - 1] for row in rows]
  inside = sum(end != EOS for end in ends)
  split = sum(len(d) + 1 > length for d in documents if d)
  assert (counts['divided'] > 0) == (inside > 0)
  assert split <= counts['divided'] <= inside


def naive_best_fit(sizes, capacity):
  """The loads of the bins, by trying every bin."""
  loads = []
  for size in sorted(sizes, reverse=True):
    fitting = [i for i, load in enumerate(loads) if load + size <= capacity]
    if not fitting:
      fitting = [len(loads)]
      loads.append(0)
    loads[max(fitting, key=lambda i: loads[i])] += size
  return sorted(loads)


@given(st.integers(1, 200).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c)))))
def test_bins_match_a_search_of_all_bins(case):
  capacity, sizes = case
  bins = best_fit_decreasing(sizes, capacity)
  assert sorted(i for items in bins for i in items) == list(range(len(sizes)))
  assert sorted(sum(sizes[i] for i in items) for items in bins) == naive_best_fit(sizes, capacity)


def test_rows_of_a_large_window_have_little_padding():
  rng = np.random.default_rng(0)
  documents = [{'text': [7] * size} for size in rng.integers(1, 100, 2000)]
  padding = {}
  for window in (1, 16, 4096):
    rows, counts = pack(BestFitDocuments(128, window=window), documents)
    assert counts['divided'] == 0
    padding[window] = 1 - np.mean([np.count_nonzero(row['segments']) for row in rows]) / 128
  assert padding[1] > padding[16] > padding[4096]
  assert padding[4096] < 0.01


def test_windows_are_packed_apart_in_the_order_of_the_documents():
  documents = [{'text': [10 + i] * size} for i, size in enumerate((2, 4, 6, 1, 5, 3))]
  rows, _ = pack(BestFitDocuments(8, window=1), documents)
  first_tokens = [set(row['tokens'].tolist()) - {0, EOS} for row in rows]
  # With eos: 3 + 5 fill a window of 8 tokens, then 7 and 2, then 6 and 4.
  assert first_tokens == [{10, 11}, {12}, {13}, {14}, {15}]


@given(pairs=st.lists(pair, max_size=30), source=st.integers(3, 20), target=st.integers(3, 20))
def test_every_pair_that_fits_is_in_one_row(pairs, source, target):
  rows, _ = pack(BestFitPairs(source, target), pairs)
  for row in rows:
    check_row(row, 'source', source)
    check_row(row, 'target', target)
  first_fit, _ = pack(PackPairs(source, target), pairs)
  assert collections.Counter(pairs_of(rows)) == collections.Counter(pairs_of(first_fit))


def test_a_pair_is_added_to_the_row_with_the_least_room():
  def pairs(*lengths):
    return [{'source': [9] * (n - 1), 'target': [9] * (n - 1)} for n in lengths]

  # After two rows with rooms 5 and 3, a pair of 3 fits both.
  lengths = pairs(5, 7, 3, 5)
  assert [np.count_nonzero(row['source']) for row in pack(BestFitPairs(10, 10), lengths)[0]] == [
    10,
    10,
  ]
  assert len(pack(PackPairs(10, 10), lengths)[0]) == 3


def test_a_window_without_rows_is_an_error():
  with pytest.raises(UserError, match=r'BestFitDocuments\.window = 0: must be at least 1'):
    BestFitDocuments(8, window=0)


@given(
  pairs=st.lists(pair, max_size=30),
  source=st.integers(3, 12),
  target=st.integers(3, 12),
  room=st.integers(0, 20),
  window=st.integers(1, 4),
)
def test_joined_pairs_are_segments_with_the_source_first(pairs, source, target, room, window):
  plan = JoinedPairs(source, target, source + target + room, window=window)
  arrays = [{name: np.array(side, np.int32) for name, side in pair.items()} for pair in pairs]
  special = type('Special', (SpecialIds,), {'before': (50,)})()
  rows = [
    add_positions(row, ['tokens']) for row in plan.pack(arrays, special, collections.Counter())
  ]
  segments = []
  for row in rows:
    check_row(row, 'tokens', plan.length)
    assert not row['in_source'][row['segments'] == 0].any()
    for segment in range(1, row['segments'].max() + 1):
      tokens, in_source = (
        row[name][row['segments'] == segment] for name in ('tokens', 'in_source')
      )
      size = np.count_nonzero(in_source)
      assert in_source[:size].all()
      segments.append((tuple(tokens[:size].tolist()), tuple(tokens[size:].tolist())))
  assert collections.Counter(segments) == collections.Counter(
    ((50, *pair['source'], EOS), (*pair['target'], EOS))
    for pair in pairs
    if pair['source']
    and pair['target']
    # Both sides are measured with the ids before a text, as in pairs with two columns.
    and len(pair['source']) + 2 <= source
    and len(pair['target']) + 2 <= target
  )


def test_rows_must_have_room_for_the_longest_pair():
  with pytest.raises(UserError, match='set the length to at least 9'):
    JoinedPairs(4, 5, 8)
