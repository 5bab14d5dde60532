"""Held-out examples that occur in the training split are found and counted."""

from hypothesis import given
from hypothesis import strategies as st

from t2x.data import find_overlap
from t2x.data.ngrams import words_of

texts = st.lists(st.lists(st.sampled_from('abc'), max_size=8).map(' '.join), max_size=8)


def grams(text, n):
  words = words_of(text)
  if len(words) < n:
    return [' '.join(words)] if words else []
  return [' '.join(words[i : i + n]) for i in range(len(words) - n + 1)]


@given(texts, texts, st.integers(1, 4))
def test_the_overlap_matches_a_comparison_of_all_pairs(train, held_out, n):
  first = {}
  for i, text in enumerate(train):
    for gram in grams(text, n):
      first.setdefault(gram, i)
  expected = []
  for i, text in enumerate(held_out):
    shared = [gram for gram in grams(text, n) if gram in first]
    if shared:
      share = len(set(shared)) / len(set(grams(text, n)))
      expected.append((i, first[shared[0]], share, shared[0]))
  found = find_overlap(iter(train), iter(held_out), n)
  assert found.matches == expected
  assert found.examples == len(held_out)
  assert found.short == sum(len(words_of(text)) < n for text in held_out)


def test_the_text_has_counts_and_the_first_matches():
  train = ['a b c d e f', 'x y']
  held_out = ['A, b! c', 'new text here', 'z c d e z z z z', 'x y', 'x']
  text = find_overlap(train, held_out, 3).text('test', 3, num_matches=2)
  assert text == (
    'test: 2 of 5 examples (40.00%) share a 3-gram of words with the training split, '
    '1 of them at least half of their 3-grams\n'
    '  2 of 5 examples (40.00%) have fewer than 3 words: 1 of them equal a training example\n'
    "  example 0, training example 0: 'a b c'\n"
    "  example 2, training example 0: 'c d e'"
  )
