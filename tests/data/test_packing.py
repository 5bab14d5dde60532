"""Packing loses nothing, repeats nothing, and keeps examples apart."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import ConcatenateAndSplit, FullRows, PackPairs, PadPairs
from t2x.data.packing import add_positions
from t2x.data.tokenizers.base import SpecialIds
from t2x.data.tokenizers.characters import ByteTokenizer, CharacterTokenizer

EOS = 1
ids = st.lists(st.integers(5, 99), max_size=12)
pair = st.fixed_dictionaries({'source': ids, 'target': ids})


def pack(plan, examples, special=SpecialIds()):
  arrays = [{k: np.array(v, np.int32) for k, v in example.items()} for example in examples]
  counts = collections.Counter()
  rows = [add_positions(row, plan.lengths) for row in plan.pack(arrays, special, counts)]
  return rows, counts


def check_row(row, column, length):
  prefix = '' if column == 'tokens' else f'{column}_'
  tokens, segments = row[column], row[f'{prefix}segments']
  positions = row[f'{prefix}positions']
  assert tokens.shape == segments.shape == positions.shape == (length,)
  used = np.count_nonzero(segments)
  assert (segments[:used] > 0).all() and (tokens[:used] > 0).all()
  assert not segments[used:].any() and not tokens[used:].any() and not positions[used:].any()
  assert segments[:1].tolist() in ([0], [1])
  steps = np.diff(segments[:used])
  assert ((steps == 0) | (steps == 1)).all()
  for segment in range(1, segments.max() + 1):
    places = positions[segments == segment]
    assert places.tolist() == list(range(len(places)))


@pytest.mark.parametrize(
  ('tokenizer', 'lossy'),
  [(ByteTokenizer(), 0), (CharacterTokenizer(' abcAB', 12), 1)],
  ids=['bytes', 'characters'],
)
def test_texts_with_unknown_tokens_are_counted(tokenizer, lossy):
  examples = [{'text': text} for text in ('ab c', 'A', 'B d\u00e9')]
  counts = collections.Counter()
  for _ in ConcatenateAndSplit(4).encode(enumerate(examples), tokenizer, counts):
    pass
  assert counts['lossy_texts'] == lossy


@given(st.lists(ids, max_size=20), st.integers(1, 15))
def test_every_token_of_every_document_is_in_exactly_one_place(documents, length):
  plan = ConcatenateAndSplit(length)
  rows, counts = pack(plan, [{'text': document} for document in documents])
  for row in rows:
    check_row(row, 'tokens', length)
  packed = [t for row in rows for t in row['tokens'][row['segments'] > 0].tolist()]
  assert packed == [t for document in documents if document for t in [*document, EOS]]
  assert counts['empty'] == sum(not document for document in documents)
  assert all((row['segments'] > 0).all() for row in rows[:-1])


@given(st.lists(ids, max_size=20), st.integers(1, 15))
def test_full_rows_are_one_segment_and_hold_all_but_the_tokens_of_an_incomplete_row(
  documents, length
):
  rows, counts = pack(FullRows(length), [{'text': document} for document in documents])
  assert FullRows.one_segment and not ConcatenateAndSplit.one_segment
  for row in rows:
    check_row(row, 'tokens', length)
    assert row['segments'].tolist() == [1] * length
  stream = [t for document in documents if document for t in [*document, EOS]]
  assert [t for row in rows for t in row['tokens'].tolist()] == stream[: length * len(rows)]
  assert counts['cut_tokens'] == len(stream) - length * len(rows) < length


@given(st.lists(ids, max_size=10), st.integers(1, 15))
def test_a_segment_never_spans_two_documents(documents, length):
  rows, _ = pack(ConcatenateAndSplit(length), [{'text': document} for document in documents])
  for row in rows:
    for segment in range(1, row['segments'].max() + 1):
      tokens = row['tokens'][row['segments'] == segment].tolist()
      assert EOS not in tokens[:-1]


def pairs_of(rows):
  """The pairs of all rows, without eos."""
  found = []
  for row in rows:
    for segment in range(1, row['source_segments'].max() + 1):
      sides = [row[s][row[f'{s}_segments'] == segment].tolist() for s in ('source', 'target')]
      assert all(side[-1] == EOS for side in sides)
      found.append((tuple(sides[0][:-1]), tuple(sides[1][:-1])))
  return found


@pytest.mark.parametrize('plan_type', [PackPairs, PadPairs])
@given(pairs=st.lists(pair, max_size=30), source=st.integers(3, 20), target=st.integers(3, 20))
def test_every_pair_that_fits_is_in_exactly_one_row(plan_type, pairs, source, target):
  rows, counts = pack(plan_type(source, target), pairs)
  for row in rows:
    check_row(row, 'source', source)
    check_row(row, 'target', target)
    assert row['source_segments'].max() == row['target_segments'].max() >= 1
  whole = [p for p in pairs if p['source'] and p['target']]
  fitting = [
    (tuple(p['source']), tuple(p['target']))
    for p in whole
    if len(p['source']) < source and len(p['target']) < target
  ]
  assert collections.Counter(pairs_of(rows)) == collections.Counter(fitting)
  assert counts['empty'] == len(pairs) - len(whole)
  assert counts['dropped'] == len(whole) - len(fitting)


@given(st.lists(pair, max_size=30), st.integers(1, 4))
def test_cut_pairs_keep_their_beginnings_and_eos(pairs, open_rows):
  rows, counts = pack(PackPairs(6, 5, too_long='cut', open_rows=open_rows), pairs)
  cut = [(tuple(p['source'][:5]), tuple(p['target'][:4])) for p in pairs if all(p.values())]
  assert collections.Counter(pairs_of(rows)) == collections.Counter(cut)
  kept = sum(len(s) + len(t) for s, t in cut)
  whole = sum(len(p['source']) + len(p['target']) for p in pairs if all(p.values()))
  assert counts['cut_tokens'] == whole - kept
  assert counts['dropped'] == 0


def test_first_fit_fills_rows_well():
  rng = np.random.default_rng(0)
  lengths = rng.integers(4, 40, (500, 2))
  pairs = [{'source': [7] * s, 'target': [8] * max(t, 1)} for s, t in lengths]
  rows, _ = pack(PackPairs(128, 128), pairs)
  full = np.mean([np.count_nonzero(r['source']) + np.count_nonzero(r['target']) for r in rows])
  assert full / 256 > 0.9


def test_a_length_of_zero_is_an_error():
  with pytest.raises(UserError, match=r'ConcatenateAndSplit.length = 0'):
    ConcatenateAndSplit(0)
