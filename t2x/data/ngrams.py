"""Hashes of word n-grams, to find near-duplicates and the overlap of splits.

A word is a run of letters, digits, underscores and characters outside ASCII, in lower case: spaces, case
and ASCII punctuation do not matter. Languages without spaces have words as long as sentences.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from t2x.data.plans import by_size, text_of

# Number of characters to hash at once.
BATCH = 1 << 20
# Odd, and so invertible modulo 2^64.
_BYTE_BASE, _WORD_BASE = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_IS_WORD = np.array([chr(i).isalnum() or i == ord('_') or i >= 128 for i in range(256)])


def words_of(text: str) -> list[str]:
  """Returns the words of a text."""
  content = text.lower().encode()
  starts, stops = _word_bounds(np.frombuffer(content, np.uint8))
  return [content[a:b].decode() for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def joined_text(example: Mapping[str, Any], fields: Sequence[str], number: int) -> str:
  """Returns the text of fields (strings or lists of words), one per line.

  Raises:
    UserError: a field is missing or is not text.
  """
  lists = {name: ' '.join(map(str, v)) for name, v in example.items() if isinstance(v, list)}
  return '\n'.join(text_of({**example, **lists}, name, number) for name in fields)


class Batch(NamedTuple):
  """Texts with the hashes of their n-grams.

  Attributes:
    texts: the texts.
    hashes: 64-bit hashes of the n-grams of all texts, in their order.
    sizes: number of n-grams of each text.
  """

  texts: list[str]
  hashes: UInt64[np.ndarray, 'ngrams']
  sizes: Int[np.ndarray, 'texts']

  def split(self) -> list[UInt64[np.ndarray, 'text_ngrams']]:
    """Returns the hashes of each text."""
    return np.split(self.hashes, np.cumsum(self.sizes)[:-1])

  def distinct(self) -> 'Batch':
    """Returns the batch with the hashes of each text sorted and without repetitions."""
    owner = np.repeat(np.arange(len(self.texts)), self.sizes)
    order = np.lexsort((self.hashes, owner))
    hashes = self.hashes[order]
    new = np.ones(len(hashes), bool)
    # The order sorts owners first, so `owner` is unchanged by it.
    new[1:] = (hashes[1:] != hashes[:-1]) | (owner[1:] != owner[:-1])
    sizes = np.bincount(owner[new], minlength=len(self.texts))
    return Batch(self.texts, hashes[new], sizes)


def hashed_batches(texts: Iterable[str], n: int) -> Iterator[Batch]:
  """Yields batches of texts with the hashes of their n-grams.

  A text with fewer than `n` words, but at least one, has one n-gram: all its words.
  """
  for batch in by_size(texts, len, BATCH):
    yield _hashed(batch, n)


def _word_bounds(content: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the first byte of each word and the byte after its last."""
  inside = np.zeros(len(content) + 2, np.int8)
  inside[1:-1] = _IS_WORD[content]
  change = np.diff(inside)
  return np.flatnonzero(change == 1), np.flatnonzero(change == -1)


def _hashed(texts: list[str], n: int) -> Batch:
  encoded = [text.lower().encode() for text in texts]
  content = np.frombuffer(b' '.join(encoded), np.uint8)
  starts, stops = _word_bounds(content)
  words = _mixed(_Prefixes(content.astype(np.uint64), _BYTE_BASE).hashes(starts, stops))

  text_starts = np.cumsum([0, *(len(text) + 1 for text in encoded[:-1])])
  text_of_word = np.searchsorted(text_starts, starts, 'right') - 1
  num_words = np.bincount(text_of_word, minlength=len(texts))
  num_ngrams = np.where(num_words < n, np.minimum(num_words, 1), num_words - n + 1)
  first_word = np.cumsum(num_words) - num_words
  index = np.arange(len(words))
  index = index[index - first_word[text_of_word] < num_ngrams[text_of_word]]
  last = index + np.minimum(num_words, n)[text_of_word[index]]
  hashes = _mixed(_Prefixes(words, _WORD_BASE).hashes(index, last))
  return Batch(texts, hashes, num_ngrams)


class _Prefixes:
  """Polynomial hashes modulo 2^64 of all intervals of a sequence: sum of x[start + i] * base^i."""

  def __init__(self, values: np.ndarray, base: int):
    self._inverse_powers = _powers(pow(base, -1, 1 << 64), len(values))
    self._sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * _powers(base, len(values)), out=self._sums[1:])

  def hashes(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    return (self._sums[stops] - self._sums[starts]) * self._inverse_powers[starts]


def _powers(base: int, count: int) -> np.ndarray:
  """Returns base^0, base^1, ... modulo 2^64."""
  powers = np.full(count, base, np.uint64)
  powers[:1] = 1
  return np.cumprod(powers, dtype=np.uint64)


def _mixed(x: np.ndarray) -> np.ndarray:
  """Returns a bijection of 64-bit integers whose bits all depend on all bits (SplitMix64)."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
