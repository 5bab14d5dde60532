"""Questions and contexts in windows: the answer is found again from its places."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import Bytes, SpanWindows

BYTES = Bytes().train(())


def rows_of(examples, **settings):
  plan = SpanWindows(**{'length': 20, 'stride': 4, 'question_length': 5} | settings)
  counts = collections.Counter()
  return list(plan.rows(examples, BYTES, counts)), counts


def example(context, start, stop, question='why?'):
  return {
    'question': question,
    'context': context,
    'answers': [context[start:stop]],
    'starts': [start],
  }


@settings(max_examples=60)
@given(st.text('abc ', min_size=1, max_size=40), st.data())
def test_the_answer_is_read_back_from_the_windows_that_hold_it(context, data):
  start = data.draw(st.integers(0, len(context) - 1))
  stop = data.draw(st.integers(start + 1, len(context)))
  length, stride = data.draw(st.integers(12, 30)), data.draw(st.integers(1, 12))
  rows, counts = rows_of([example(context, start, stop)], length=length, stride=stride)
  size = length - BYTES.num_added(pair=True) - 4
  assert counts['windowed'] == (len(context) > size)
  seen = set()
  for row in rows:
    inside = np.flatnonzero(row['context'])
    assert len(inside) <= size
    seen |= {int(place) for place in row['char_starts'][inside]}
    if row['start']:
      assert row['context'][row['start']] == row['context'][row['end']] == 1
      told = context[row['char_starts'][row['start']] : row['char_ends'][row['end']]]
      assert told == context[start:stop].strip()
    else:
      assert row['end'] == 0
  # Every character that is no white space is in some window.
  assert {i for i, c in enumerate(context) if c != ' '} <= seen
  if context[start:stop].strip() and len(context[start:stop]) <= min(size, size - stride + 1):
    assert any(row['start'] for row in rows)


def test_windows_follow_each_other_by_the_stride_up_to_the_end():
  rows, _ = rows_of([example('abcdefghijkl', 9, 11)], length=15)
  starts = [int(row['char_starts'][np.flatnonzero(row['context'])[0]]) for row in rows]
  ends = [int(row['char_ends'].max()) for row in rows]
  assert (starts, ends) == ([0, 4], [8, 12])
  assert [bool(row['start']) for row in rows] == [False, True]
  assert [row['example'] for row in rows] == [0, 0]


def test_a_question_without_an_answer_points_at_the_class_token():
  rows, _ = rows_of([{'question': 'q', 'context': 'abc', 'answers': [], 'starts': []}])
  assert [(row['start'], row['end'], row['weight']) for row in rows] == [(0, 0, 1)]


@pytest.mark.parametrize(
  ('changed', 'told'),
  [
    ({'starts': [1]}, "the answer 'ab' is not in its context"),
    ({'starts': []}, "in 'starts' (empty)"),
    ({'answers': 'ab'}, "no lists 'answers' and 'starts'"),
    ({'context': None}, "no text 'context'"),
  ],
)
def test_invalid_examples_are_errors(changed, told):
  with pytest.raises(UserError) as caught:
    rows_of([example('abcd', 0, 2) | changed])
  assert told in str(caught.value)
  assert '\n' not in str(caught.value)


def test_a_row_too_short_for_the_context_is_an_error():
  with pytest.raises(UserError, match='increase length or reduce question_length'):
    rows_of([example('abcd', 0, 2)], length=7)
