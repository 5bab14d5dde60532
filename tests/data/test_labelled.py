"""Labelled examples become rows of one shape, and nothing of them is lost or counted twice."""

import collections
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import Bytes, LabelledTexts, LabelledWords, token_rows
from t2x.data.labelled import first_pieces
from t2x.data.tokenizers.base import Located

BYTES = Bytes().train(())


class Pieces(type(BYTES)):
  """Pieces of at most three characters, white space left out; `#` has none."""

  def locate(self, text):
    spans = [match.span() for match in re.finditer(r'[^\s#]{1,3}', text)]
    ids = [10 + len(text[start:stop]) for start, stop in spans]
    return Located(np.array(ids, np.int32), np.array(spans, np.int32).reshape(-1, 2))


PIECES = Pieces()


def rows_of(plan, examples, tokenizer=PIECES):
  counts = collections.Counter()
  return list(plan.rows(examples, tokenizer, counts)), counts


def test_a_text_is_enclosed_in_special_ids_and_has_its_label():
  plan = LabelledTexts(length=8, labels=('no', 'yes'))
  (row,), counts = rows_of(plan, [{'text': 'ab', 'label': 'yes'}], BYTES)
  known = BYTES.encode_pair('ab')
  assert row['tokens'].tolist() == [*known.ids, *[0] * (8 - len(known))]
  assert row['segments'].tolist() == [1] * len(known) + [0] * (8 - len(known))
  assert (row['label'], row['weight'], counts['cut']) == (1, 1, 0)


def test_long_texts_are_truncated_and_counted():
  plan = LabelledTexts(length=8, labels=('x',))
  (row,), counts = rows_of(plan, [{'text': 'a' * 50, 'label': 'x'}], BYTES)
  assert (row['segments'] == 1).all()
  assert row['tokens'][-1] == BYTES.eos_id
  assert counts['cut'] == 1


@given(st.integers(0, 30), st.integers(0, 30), st.integers(5, 30))
def test_of_a_pair_the_longer_text_is_cut_first(first, second, length):
  plan = LabelledTexts(length=length, labels=('x',), fields=('a', 'b'))
  (row,), counts = rows_of(plan, [{'a': 'a' * first, 'b': 'b' * second, 'label': 'x'}], BYTES)
  kept = [int((row['tokens'] == BYTES.encode(letter)[0]).sum()) for letter in 'ab']
  room = length - BYTES.num_added(pair=True)
  assert sum(kept) == min(room, first + second)
  assert counts['cut'] == (first + second > room)
  # Nothing is taken from a text while the other one keeps more than one token beyond it.
  if kept[0] < first:
    assert kept[1] == second or kept[0] - kept[1] in (0, 1)
    assert kept[0] >= min(kept[1], second)
  if kept[1] < second:
    assert kept[1] + 1 >= kept[0]


@settings(max_examples=60)
@given(
  st.lists(st.text('ab#', min_size=1, max_size=8), min_size=1, max_size=12), st.integers(3, 12)
)
@example(['a', '#', '#', '#'], 3)  # More words than a row has places.
def test_every_word_has_one_label_at_its_first_piece(words, length):
  plan = LabelledWords(length=length, labels=tuple('0123456789AB'))
  labels = list('0123456789AB'[: len(words)])
  rows, _ = rows_of(plan, [{'words': words, 'labels': labels}])
  told = [
    (int(row['word_labels'][i]), int(row['tokens'][row['word_positions'][i]]))
    for row in rows
    for i in np.flatnonzero(row['word_weights'])
  ]
  assert [label for label, _ in told] == list(range(len(words)))
  for word, (_, piece) in zip(words, told, strict=True):
    own = PIECES.locate(word).ids
    assert not len(own) or piece == own[0]
  for row in rows:
    assert row['segments'].sum() <= length


def test_a_word_of_no_piece_has_the_piece_before_it():
  located = PIECES.locate('ab # cd')
  assert first_pieces(located, np.array([0, 3, 5]), np.array([2, 4, 7])).tolist() == [0, 0, 1]
  empty = PIECES.locate('#')
  assert first_pieces(empty, np.array([0]), np.array([1])).tolist() == [0]


class Source:
  """Examples that are there."""

  def __init__(self, *examples):
    self.examples = examples

  def load(self, split):
    return self.examples

  def fingerprint(self):
    return repr(self.examples)


def test_rows_come_back_from_the_cache_as_they_were(tmp_path):
  plan = LabelledTexts(length=8, labels=('no', 'yes'))
  source = Source({'text': 'ab', 'label': 'yes'}, {'text': 'c' * 20, 'label': 'no'})
  rows = token_rows(source, 'train', BYTES, plan, tmp_path)
  expected, _ = rows_of(plan, source.examples, BYTES)
  assert len(rows) == 2
  for row, wanted in zip(rows, expected, strict=True):
    assert row.keys() == wanted.keys()
    assert all(np.array_equal(row[name], wanted[name]) for name in wanted)
    assert np.shape(row['label']) == ()
  assert (rows.info['examples'], rows.info['cut'], rows.info['tokens']) == (2, 1, 12)
  again = token_rows(source, 'train', BYTES, plan, tmp_path)
  assert again.fingerprint == rows.fingerprint
  other = token_rows(
    source, 'train', BYTES, LabelledTexts(length=9, labels=('no', 'yes')), tmp_path
  )
  assert other.fingerprint != rows.fingerprint


TEXTS = LabelledTexts(length=9, labels=('x', 'y'))
WORDS = LabelledWords(length=9, labels=('x', 'y'))


@pytest.mark.parametrize(
  ('plan', 'example', 'told'),
  [
    (
      TEXTS,
      {'text': 'a', 'label': 'z'},
      "example 0 has the label 'z', but the labels of the task are x, y: ",
    ),
    (TEXTS, {'text': 'a'}, "the label 'None'"),
    (TEXTS, {'body': 'a', 'label': 'x'}, "no text 'text': its fields are ['body', 'label']"),
    (WORDS, {'words': 'a b', 'labels': ['x']}, "no lists 'words' and 'labels'"),
    (WORDS, {'words': ['a', 'b'], 'labels': ['x']}, '2 words and 1 labels'),
    (WORDS, {'words': ['a', ' '], 'labels': ['x', 'x']}, 'has a blank word'),
    (LabelledTexts(length=1, labels=('x',)), {'text': 'a', 'label': 'x'}, 'no room for text'),
    (LabelledTexts(length=9, labels=('x', 'x')), {'text': 'a', 'label': 'x'}, "'x' is repeated"),
  ],
)
def test_examples_that_do_not_fit_the_task_are_errors(plan, example, told):
  with pytest.raises(UserError) as caught:
    rows_of(plan, [example])
  assert told in str(caught.value)
  assert '\n' not in str(caught.value)
