"""Marks computed from token ids."""

import jax.numpy as jnp
import numpy as np
import pytest

from t2x.layers import Causal, Full, Marked, Prefix, Window
from t2x.layers.marks import Marks, TokenMark

NEWLINE = 7
MARKS = Marks((('starts', TokenMark((NEWLINE,), after=True)), ('ends', TokenMark((NEWLINE, 2)))))


def by_loop(ids, segments):
  """The marks of one row, token by token."""
  starts, ends = [], []
  for i, (token, segment) in enumerate(zip(ids, segments, strict=True)):
    first = i == 0 or segments[i - 1] != segment
    starts.append(bool(segment) and (first or ids[i - 1] == NEWLINE))
    ends.append(bool(segment) and token in (NEWLINE, 2))
  return {'starts': starts, 'ends': ends}


def test_marks_of_packed_rows_equal_a_loop():
  rng = np.random.default_rng(0)
  ids = rng.integers(0, 10, (4, 40)).astype(np.int32)
  segments = np.sort(rng.integers(0, 5, (4, 40)))[:, ::-1].copy()
  segments = np.where(segments == 0, 0, 5 - segments).astype(np.int32)
  marks = MARKS.of_rows(jnp.asarray(ids), jnp.asarray(segments))
  for b in range(4):
    for name, expected in by_loop(ids[b], segments[b]).items():
      np.testing.assert_array_equal(marks[name][b], expected)


def test_without_segments_a_row_is_one_segment():
  ids = jnp.asarray([[NEWLINE, 3, 3, NEWLINE, 11, 2]])
  marks = MARKS.of_rows(ids)
  np.testing.assert_array_equal(marks['starts'], [[True, True, False, False, True, False]])
  np.testing.assert_array_equal(marks['ends'], [[True, False, False, True, False, True]])


def test_token_by_token_equals_a_row():
  ids = np.random.default_rng(1).integers(0, 10, (2, 20))
  row = MARKS.of_rows(jnp.asarray(ids))
  for i in range(20):
    before = ids[:, i - 1 : i] if i else np.full((2, 1), -1)
    for name, mark in MARKS(jnp.asarray(ids[:, i : i + 1]), jnp.asarray(before)).items():
      np.testing.assert_array_equal(mark, row[name][:, i : i + 1])


@pytest.mark.parametrize('length', [8, 300])
@pytest.mark.parametrize(
  ('pattern', 'causal'),
  [
    (Causal() & (Window(3) | Marked('starts')), True),
    (Causal() & Window(3) | Causal() & Marked('starts'), True),
    (Causal() | Marked('starts'), False),
    (Causal() & Window(3) | Marked('starts'), False),
    (Causal() | Marked('other'), True),
    (Causal() | Prefix(), True),
    (Causal() | ~Marked('starts') & Full(), False),
  ],
  ids=str,
)
def test_causality_of_patterns_with_marks(pattern, causal, length):
  assert pattern.is_causal(length, ['starts']) == causal


def test_without_marks_a_marked_pattern_is_causal():
  assert (Causal() | Marked('starts')).is_causal(8)
