"""Ways to choose the tokens of a row that are masked: single tokens, whole words, or n-grams of words."""

import dataclasses
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from t2x.base.ranges import Size

__all__ = ['NGrams', 'SingleTokens', 'TokenChoice', 'WholeWords']


@runtime_checkable
class TokenChoice(Protocol):
  """Chooses tokens of a row at random."""

  def __call__(
    self, words: Int[np.ndarray, 'tokens'], count: int, rng: np.random.Generator
  ) -> Int[np.ndarray, 'chosen']:
    """Returns the indices of at most `count` tokens, in ascending order.

    Args:
      words: the number of the word of each token that may be chosen, in ascending order. Adjacent words have
        consecutive numbers; where tokens that may not be chosen are between two words, a number is missing.
      count: maximum number of tokens.
      rng: random generator.
    """
    ...


@dataclasses.dataclass(frozen=True)
class SingleTokens(TokenChoice):
  """Chooses tokens independently of words (BERT, https://arxiv.org/abs/1810.04805)."""

  def __call__(self, words, count, rng):
    return np.sort(rng.permutation(len(words))[:count])


@dataclasses.dataclass(frozen=True)
class WholeWords(TokenChoice):
  """Chooses words in random order, each with all its tokens (BERT-wwm, https://arxiv.org/abs/1906.08101).

  A word with more tokens than are left is skipped, so that fewer tokens than `count` may be chosen.
  """

  def __call__(self, words, count, rng):
    _, word, lengths = np.unique(words, return_inverse=True, return_counts=True)
    chosen = np.zeros(len(lengths), bool)
    for i in rng.permutation(len(lengths)).tolist():
      if not count:
        break
      if lengths[i] <= count:
        chosen[i] = True
        count -= int(lengths[i])
    return np.flatnonzero(chosen[word])


@dataclasses.dataclass(frozen=True, kw_only=True)
class NGrams(TokenChoice):
  """Chooses n-grams of adjacent words, of length n with a probability in proportion to 1 / n (ALBERT,
  https://arxiv.org/abs/1909.11942, section 3.1).

  The length is drawn first, then one of the places where such an n-gram is free and fits, so that overlaps do not
  change the lengths, as they do in the published code. Without such a place, the n-gram is shortened; fewer tokens than
  `count` are chosen if no word fits.

  Attributes:
    max_length: maximum number of words of an n-gram.
  """

  max_length: Size = 3

  def __call__(self, words, count, rng):
    numbers, word, lengths = np.unique(words, return_inverse=True, return_counts=True)
    sizes = np.arange(1, self.max_length + 1)
    shares = 1 / sizes / (1 / sizes).sum()
    free, ends = np.ones(len(numbers), bool), np.append(0, np.cumsum(lengths))

    def places(n: int) -> np.ndarray:
      """Returns the first words of the n-grams that are free and have at most `count` tokens."""
      last = max(len(numbers) - n + 1, 0)
      fits = ends[n:] - ends[:last] <= count
      fits &= numbers[n - 1 :] - numbers[:last] == n - 1
      for i in range(n):
        fits &= free[i : i + last]
      return np.flatnonzero(fits)

    while len(places(1)):
      n = int(rng.choice(sizes, p=shares))
      while not len(starts := places(n)):
        n -= 1
      start = int(rng.choice(starts))
      free[start : start + n] = False
      count -= int(ends[start + n] - ends[start])
    return np.flatnonzero(~free[word])
