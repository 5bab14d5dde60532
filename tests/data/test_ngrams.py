"""Hashes of word n-grams are equal exactly for equal n-grams."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import ngrams
from t2x.data.ngrams import hashed_batches, joined_text, words_of

texts = st.lists(st.text('aB\u00e9 ,_7\n', max_size=20), max_size=12)


def naive(text, n):
  words = re.findall(r'[^\x00-/:-@\[-^`{-\x7f]+', text.lower())
  assert words == words_of(text)
  if len(words) < n:
    return [tuple(words)] if words else []
  return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def hashes_of(texts, n):
  return [hashes.tolist() for batch in hashed_batches(texts, n) for hashes in batch.split()]


@given(texts, st.integers(1, 4))
def test_hashes_are_equal_exactly_for_equal_ngrams(texts, n):
  expected = [gram for text in texts for gram in naive(text, n)]
  found = hashes_of(texts, n)
  assert [len(hashes) for hashes in found] == [len(naive(text, n)) for text in texts]
  pairs = set(zip(expected, (h for hashes in found for h in hashes), strict=True))
  assert len(pairs) == len(set(expected)) == len({h for _, h in pairs})


@pytest.mark.parametrize('size', [1, 7, 40])
def test_hashes_do_not_depend_on_the_batches(size, monkeypatch):
  lines = [f'some words {i} and {i % 3} more of them' for i in range(20)] + ['', 'one', '...']
  expected = hashes_of(lines, 3)
  monkeypatch.setattr(ngrams, 'BATCH', size)
  assert hashes_of(lines, 3) == expected


@given(texts, st.integers(1, 3))
def test_distinct_hashes_are_sorted_for_each_text(texts, n):
  for batch in hashed_batches(texts, n):
    for hashes, distinct in zip(batch.split(), batch.distinct().split(), strict=True):
      np.testing.assert_array_equal(distinct, np.unique(hashes))


def test_fields_are_joined_and_a_missing_one_is_an_error():
  example = {'source': 'a b', 'words': ['c', 'd']}
  assert joined_text(example, ('source', 'words'), 0) == 'a b\nc d'
  with pytest.raises(UserError, match=r"example 7 has no text 'text': its fields are \['source'"):
    joined_text(example, ('text',), 7)
