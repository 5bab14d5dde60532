"""Overlap of splits: held-out examples with a word n-gram that occurs in the training split.

As in the contamination study of GPT-3 (Brown et al. 2020, https://arxiv.org/abs/2005.14165, appendix C).
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from t2x.data.ngrams import hashed_batches, words_of

__all__ = ['find_overlap']


class Match(NamedTuple):
  """A held-out example that overlaps.

  Attributes:
    example: index of the held-out example.
    train_example: index of the first training example with `words`.
    share: share of the distinct n-grams of the held-out example that occur in training.
    words: the first of these n-grams.
  """

  example: int
  train_example: int
  share: float
  words: str


@dataclasses.dataclass(frozen=True)
class Overlap:
  """Result of `find_overlap`.

  Attributes:
    examples: number of held-out examples.
    short: number of held-out examples with fewer words than an n-gram.
    matches: the examples that overlap, in their order.
  """

  examples: int
  short: int
  matches: list[Match]

  def text(self, split: str, n: int, num_matches: int = 3) -> str:
    """Returns lines with the counts and the first matches."""

    def count(number: int) -> str:
      return f'{number:,} of {self.examples:,} examples ({number / max(self.examples, 1):.2%})'

    whole = sum(match.words.count(' ') < n - 1 for match in self.matches)
    most = sum(match.share >= 0.5 for match in self.matches) - whole
    lines = [
      f'{split}: {count(len(self.matches) - whole)} share a {n}-gram of words with the training split, '
      f'{most:,} of them at least half of their {n}-grams'
    ]
    if self.short:
      lines.append(
        f'  {count(self.short)} have fewer than {n} words: {whole:,} of them equal a training example'
      )
    for match in self.matches[:num_matches]:
      lines.append(
        f"  example {match.example}, training example {match.train_example}: '{match.words}'"
      )
    return '\n'.join(lines)


def find_overlap(train: Iterable[str], held_out: Iterable[str], n: int) -> Overlap:
  """Finds the held-out texts that have an n-gram of words in common with a training text.

  A text with fewer than `n` words, but at least one, is one n-gram. N-grams are compared by 64-bit hashes.
  The held-out texts are in memory, with 24 bytes for each of their n-grams.

  Args:
    train: the training texts, which are read once.
    held_out: the held-out texts.
    n: words per n-gram.
  """
  texts, hashes = [], []
  for batch in hashed_batches(held_out, n):
    texts += batch.texts
    hashes += batch.split()
  unique = np.unique(np.concatenate(hashes)) if hashes else np.zeros(0, np.uint64)
  first_example = np.full(len(unique), -1)
  first = 0
  for batch in hashed_batches(train, n):
    examples = first + np.repeat(np.arange(len(batch.texts)), batch.sizes)
    first += len(batch.texts)
    if len(unique):
      places = np.minimum(np.searchsorted(unique, batch.hashes), len(unique) - 1)
      new = np.flatnonzero((unique[places] == batch.hashes) & (first_example[places] < 0))
      # The last value of a repeated index is assigned, which is the first example in reverse order.
      first_example[places[new[::-1]]] = examples[new[::-1]]
  matches, short = [], 0
  for i, (text, ngrams) in enumerate(zip(texts, hashes, strict=True)):
    origins = first_example[np.searchsorted(unique, ngrams)]
    words = words_of(text)
    short += len(words) < n
    if (origins >= 0).any():
      place = int(np.flatnonzero(origins >= 0)[0])
      distinct = np.unique(ngrams, return_index=True)[1]
      share = float((origins[distinct] >= 0).mean())
      matches.append(Match(i, int(origins[place]), share, ' '.join(words[place : place + n])))
  return Overlap(len(texts), short, matches)
