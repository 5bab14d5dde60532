"""Merges of BPE (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909): dropout, and step by step replay.

BPE dropout (Provilkov et al. 2020, https://arxiv.org/abs/1910.13267) is implemented here because that of the
tokenizer libraries is not reproducible across processes.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

Pair = tuple[str, str]


def apply_merges(
  word: Sequence[str],
  ranks: Mapping[tuple[str, str], int],
  rate: float,
  rng: np.random.Generator,
) -> list[str]:
  """Splits a word into pieces by BPE with dropped merges.

  Args:
    word: its characters.
    ranks: pair -> rank. The pair with the lowest rank is merged first; ties go to the leftmost pair.
    rate: probability of dropping each possible merge, drawn again after each merge.
    rng: random generator.
  """
  pieces = list(word)
  while True:
    pairs = enumerate(itertools.pairwise(pieces))
    candidates = sorted((ranks[pair], i) for i, pair in pairs if pair in ranks)
    i = next((i for _, i in candidates if rng.random() >= rate), None)
    if i is None:
      return pieces
    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@dataclasses.dataclass(frozen=True)
class Merge:
  """A merge, and the sizes after it.

  Attributes:
    pair: the two tokens.
    count: number of places in the text where the first token precedes the second, before the merge.
    token: the new token.
    vocab_size: number of ids.
    num_tokens: number of tokens of the text.
  """

  pair: Pair
  count: int
  token: str
  vocab_size: int
  num_tokens: int


def trace_merges(
  words: Mapping[str, int],
  merges: Iterable[Sequence[Pair]],
  vocab_size: int,
  show: Callable[[str], str],
) -> Iterator[Merge]:
  """Yields the merges in their order.

  The tokens after each merge are those of a tokenizer with only the merges so far.

  Args:
    words: word -> its count in the text; no token crosses the end of a word.
    merges: for each merge, the pairs that it joins (several in SentencePiece, where all pairs with the same
      concatenation are one merge).
    vocab_size: number of ids before the first merge.
    show: converts a token to readable text.
  """
  tokens = {word: list(word) for word in words}
  num_tokens = sum(len(word) * count for word, count in words.items())
  counts: collections.Counter[Pair] = collections.Counter()
  where: dict[Pair, set[str]] = collections.defaultdict(set)

  def count(word: str, sign: int) -> None:
    for pair in itertools.pairwise(tokens[word]):
      counts[pair] += sign * words[word]
      where[pair].add(word)

  for word in words:
    count(word, 1)
  ranks: dict[Pair, int] = {}
  rng = np.random.default_rng(0)  # Not used: no merge is dropped.
  for rank, pairs in enumerate(merges):
    ranks |= dict.fromkeys(pairs, rank)
    best = max(pairs, key=lambda pair: counts[pair])
    frequency = counts[best]
    # Words in `where` may have lost the pair since: they stay as they are.
    for word in sorted(set().union(*(where.pop(pair, ()) for pair in pairs))):
      count(word, -1)
      before = len(tokens[word])
      tokens[word] = apply_merges(tokens[word], ranks, 0.0, rng)
      num_tokens -= (before - len(tokens[word])) * words[word]
      count(word, 1)
    first, last = map(show, best)
    yield Merge((first, last), frequency, show(''.join(best)), vocab_size + rank + 1, num_tokens)
