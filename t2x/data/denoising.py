"""Corruptions of a text that a model undoes (BART: Lewis et al. 2020, https://arxiv.org/abs/1910.13461, section 2.2),
drawn anew in each epoch."""

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int

from t2x.base.ranges import NonEmpty, Positive, Range, Text
from t2x.data.corruption import to_sides
from t2x.data.masking import mask_id
from t2x.data.tokenizers.base import Tokenizer, ids_with

__all__ = [
  'CorruptText',
  'DeleteTokens',
  'InfillSpans',
  'Noise',
  'PermuteSentences',
  'ReplaceByMasks',
  'ReplaceTokens',
  'RotateText',
  'ShuffleTokens',
]

Ids = Int[np.ndarray, 'length']
Share = Annotated[float, Range('0 < x <= 1')]


class Noise(abc.ABC):
  """A corruption of a text."""

  @abc.abstractmethod
  def __call__(self, ids: Ids, tokenizer: Tokenizer, rng: np.random.Generator) -> Ids:
    """Returns the corrupted text, of any length.

    Args:
      ids: the text, without special tokens at its ends.
      tokenizer: defines the mask token, the words and the spelling of tokens.
      rng: random numbers of this row and epoch.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class InfillSpans(Noise):
  """Replaces each of some spans, with lengths of a Poisson distribution, by one mask. A span of length
  0 inserts a mask.

  Lengths are drawn until they add up to rate * the number of tokens, rounded up; the last one is shortened. The spans
  start at different tokens and end at the end of the text. Spans that overlap share a mask, so that fewer tokens are
  hidden, as in fairseq's denoising_dataset.py.

  Attributes:
    rate: sum of the lengths, as a fraction of the number of tokens.
    mean_span: mean of the Poisson distribution.
    whole_word: counts words instead of tokens, and hides all tokens of a word.
  """

  rate: Share = 0.3
  mean_span: Positive = 3.0
  whole_word: bool = False

  def __call__(self, ids, tokenizer, rng):
    if not len(ids):
      return ids
    starts = tokenizer.word_starts(ids) if self.whole_word else np.ones(len(ids), bool)
    starts[0] = True
    unit, num_units = np.cumsum(starts) - 1, int(starts.sum())
    drawn = self.lengths(num_units, rng)
    lengths = drawn[drawn > 0]
    first = rng.permutation(num_units)[: len(lengths)]
    # A unit inside of a span is removed, also where another span starts.
    edges = np.zeros(num_units + 1, np.int64)
    np.add.at(edges, first + 1, 1)
    np.add.at(edges, np.minimum(first + lengths, num_units), -1)
    removed = np.cumsum(edges)[:-1] > 0
    is_mask = np.isin(np.arange(num_units), first)
    present = ~removed[unit] & (starts | ~is_mask[unit])
    mask = mask_id(tokenizer)
    text = np.where(is_mask[unit], mask, ids)[present]
    result = np.full(len(text) + len(drawn) - len(lengths), mask, np.int32)
    result[np.sort(rng.permutation(len(result))[: len(text)])] = text
    return result

  def lengths(self, num_units: int, rng: np.random.Generator) -> Int[np.ndarray, 'spans']:
    """Returns the lengths of the spans, including those of length 0."""
    total = math.ceil(num_units * self.rate)
    lengths = rng.poisson(self.mean_span, total)
    while lengths.sum() < total:
      lengths = np.append(lengths, rng.poisson(self.mean_span, total))
    ends = np.cumsum(lengths)
    count = int(np.searchsorted(ends, total)) + 1
    lengths = lengths[:count]
    lengths[-1] -= ends[count - 1] - total
    return lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplaceByMasks(Noise):
  """Replaces single tokens by masks: rate * their number, rounded up.

  Attributes:
    rate: fraction of the tokens.
  """

  rate: Share = 0.15

  def __call__(self, ids, tokenizer, rng):
    result = np.array(ids, np.int32)
    result[_chosen(ids, self.rate, rng)] = mask_id(tokenizer)
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeleteTokens(Noise):
  """Removes single tokens without a trace: rate * their number, rounded up.

  Attributes:
    rate: fraction of the tokens.
  """

  rate: Share = 0.15

  def __call__(self, ids, tokenizer, rng):
    return np.delete(ids, _chosen(ids, self.rate, rng))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PermuteSentences(Noise):
  """Shuffles the sentences of a text.

  A sentence ends after a token whose text contains one of `ends`, or after the end of a document; further such tokens
  belong to the next sentence.

  Attributes:
    ends: texts that end a sentence.
    rate: fraction of the sentences to shuffle, rounded up; the rest keeps its places.
  """

  ends: Annotated[Sequence[Text], NonEmpty] = ('.', '!', '?', '\n')
  rate: Share = 1.0

  def __call__(self, ids, tokenizer, rng):
    ending = {*ids_with(tokenizer, tuple(self.ends), 'PermuteSentences.ends'), tokenizer.eos_id}
    is_end = np.isin(ids, list(ending))
    is_end[1:] &= ~is_end[:-1]
    sentences = np.split(ids, np.flatnonzero(is_end[:-1]) + 1)
    order = np.arange(len(sentences))
    chosen = _chosen(order, self.rate, rng)
    order[chosen] = rng.permutation(chosen)
    return np.concatenate([sentences[i] for i in order])


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotateText(Noise):
  """Rotates a text, so that it begins with one of its tokens, each equally likely.

  Attributes:
    rate: fraction of the rotated texts.
  """

  rate: Share = 1.0

  def __call__(self, ids, tokenizer, rng):
    if not len(ids) or rng.random() >= self.rate:
      return ids
    return np.roll(ids, -int(rng.integers(len(ids))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplaceTokens(Noise):
  """Replaces single tokens by random tokens that are not special: rate * their number, rounded up.

  Attributes:
    rate: fraction of the tokens.
  """

  rate: Share = 0.15

  def __call__(self, ids, tokenizer, rng):
    chosen, ordinary = _chosen(ids, self.rate, rng), np.flatnonzero(~tokenizer.special)
    result = np.array(ids, np.int32)
    # A step from the index of a token leads to another one; special tokens are replaced by any.
    steps = rng.integers(1, len(ordinary), len(chosen))
    indices = (np.searchsorted(ordinary, ids[chosen]) + steps) % len(ordinary)
    result[chosen] = ordinary[indices]
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffleTokens(Noise):
  """Shuffles tokens among their places: rate * their number, rounded up.

  Attributes:
    rate: fraction of the tokens to shuffle; the rest keeps its places.
  """

  rate: Share = 1.0

  def __call__(self, ids, tokenizer, rng):
    chosen = _chosen(ids, self.rate, rng)
    result = np.array(ids, np.int32)
    result[chosen] = ids[rng.permutation(chosen)]
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorruptText:
  """Converts a row of text to a source, the corrupted text, and a target, the text. Both end with eos.

  Attributes:
    tokenizer: that of the text.
    noise: corruptions, in the order of application.
    length: tokens of each side with eos. A corrupted text that is longer is cut; that of `InfillSpans` is longer only
      if it is short, or with a mean span below 1.
  """

  tokenizer: Tokenizer = dataclasses.field(repr=False)
  noise: tuple[Noise, ...]
  length: int

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns int32 `source`, `target` and their segments (1, or 0 for padding) of `tokens`."""
    text = np.asarray(row['tokens'], np.int32)[np.asarray(row['segments']) != 0]
    source = text
    for noise in self.noise:
      source = noise(source, self.tokenizer, rng)
    sides = {'source': source, 'target': text}
    ids = {
      name: np.append(one[: self.length - 1], self.tokenizer.eos_id) for name, one in sides.items()
    }
    return to_sides(ids, dict.fromkeys(sides, self.length))


def _chosen(items: np.ndarray, rate: float, rng: np.random.Generator) -> Int[np.ndarray, 'chosen']:
  """Returns the indices of rate * the number of items, rounded up, in random order."""
  return rng.permutation(len(items))[: math.ceil(len(items) * rate)]
