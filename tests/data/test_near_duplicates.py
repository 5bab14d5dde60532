"""Near-duplicates are those that a comparison of all pairs finds."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2x.data import near_duplicates as module
from t2x.data.near_duplicates import near_duplicates, similarity
from t2x.data.ngrams import words_of

THRESHOLDS = [Fraction(1, 10), Fraction(1, 2), Fraction(7, 10), Fraction(4, 5), Fraction(1)]


def naive(texts, n, threshold):
  """Compares each text with all kept texts, with exact fractions."""
  sets = []
  for text in texts:
    words = words_of(text)
    grams = {tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, 1))}
    sets.append(grams if words else set())
  kept, found = [], []
  for i, grams in enumerate(sets):
    similar = [
      j for j in kept if grams and Fraction(len(grams & sets[j]), len(grams | sets[j])) >= threshold
    ]
    found.append(similar[0] if similar else -1)
    if not similar:
      kept.append(i)
  return found


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('hashes')


@given(
  st.lists(st.lists(st.sampled_from('abcd'), max_size=12).map(' '.join), max_size=15),
  st.integers(1, 3),
  st.sampled_from(THRESHOLDS),
)
def test_near_duplicates_match_a_comparison_of_all_pairs(folder, texts, n, threshold):
  found = near_duplicates(texts, n, float(threshold), folder)
  assert found.tolist() == naive(texts, n, threshold)
  assert list(folder.iterdir()) == []


def planted(seed, count=120):
  """Random texts, of which some are others with some words changed."""
  rng = np.random.default_rng(seed)
  texts = []
  for _ in range(count):
    if texts and rng.random() < 0.5:
      words = texts[rng.integers(len(texts))].split()
      for place in rng.integers(len(words), size=rng.integers(5)):
        words[place] = f'w{rng.integers(50)}'
    else:
      words = [f'w{i}' for i in rng.integers(50, size=rng.integers(1, 80))]
    texts.append(' '.join(words))
  return texts


@pytest.mark.parametrize('threshold', THRESHOLDS)
@pytest.mark.parametrize('n', [1, 3, 5])
def test_changed_copies_are_detected_for_any_chunks_and_counters(
  tmp_path, monkeypatch, n, threshold
):
  texts = planted(seed=n)
  expected = naive(texts, n, threshold)
  assert any(j >= 0 for j in expected)
  assert near_duplicates(texts, n, float(threshold), tmp_path).tolist() == expected
  monkeypatch.setattr(module, '_CHUNK', 100)
  assert near_duplicates(texts, n, float(threshold), tmp_path).tolist() == expected
  # Four counters for all n-grams: their order changes, the result does not.
  monkeypatch.setattr(module, '_COUNTER_BITS', 2)
  monkeypatch.setattr(module, '_SHIFT', np.uint64(62))
  assert near_duplicates(texts, n, float(threshold), tmp_path).tolist() == expected


def test_the_temporary_file_is_removed_after_an_error(tmp_path):
  def texts():
    yield 'some words'
    raise ValueError('no more')

  with pytest.raises(ValueError, match='no more'):
    near_duplicates(texts(), 2, 0.5, tmp_path)
  assert list(Path(tmp_path).iterdir()) == []


@given(*[st.sets(st.integers(0, 30), min_size=1).map(sorted).map(np.array)] * 2)
def test_similarity_matches_jaccard(first, second):
  common, union = set(first) & set(second), set(first) | set(second)
  assert similarity(first, second) == len(common) / len(union)
