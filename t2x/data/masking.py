"""Hides tokens for masked language modelling (BERT, https://arxiv.org/abs/1810.04805), drawn anew
each epoch (RoBERTa, https://arxiv.org/abs/1907.11692), by token or by whole word (BERT-wwm,
https://arxiv.org/abs/1906.08101)."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2x.data.tokenizers import Tokenizer
from t2x.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskTokens:
  """A transform that hides tokens of a row and says what they were.

  Of n tokens that are neither special nor padding rate * n are chosen, rounded up or down at random
  so that the mean is exact; whole words stop short of it by less than a word. Special tokens and
  padding are never chosen.

  Attributes:
    tokenizer: gives the mask token, the size of the vocabulary and where words begin.
    max_predictions: places for predictions in a row, at least rate * length.
    rate: part of the tokens that are to be predicted.
    mask_rate: part of those that the mask token replaces.
    random_rate: part of those that a random token replaces; the rest stays as it was.
    whole_word: chooses all pieces of a word together.
  """

  tokenizer: Tokenizer = dataclasses.field(repr=False)
  max_predictions: int
  rate: float = 0.15
  mask_rate: float = 0.8
  random_rate: float = 0.1
  whole_word: bool = False

  def __post_init__(self):
    rates = self.rate, self.mask_rate, self.random_rate
    if not all(0 <= rate <= 1 for rate in rates) or self.mask_rate + self.random_rate > 1:
      raise UserError(
        f'rate = {self.rate}, mask_rate = {self.mask_rate}, random_rate = {self.random_rate}: '
        'each from 0 to 1, the last two together as well'
      )
    _mask_id(self.tokenizer)

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The row with some of `tokens` replaced, and with `masked_positions` int32 [max_predictions]
    in ascending order, `labels` int32 and `weights` float32 (1, or 0 for places not used)."""
    tokens = np.array(row['tokens'], np.int32)
    special = self.tokenizer.special
    maskable = np.flatnonzero(~special[tokens] & (row['segments'] != 0))
    count = min(int(self.rate * len(maskable) + rng.random()), self.max_predictions)
    if self.whole_word:
      chosen = self._words(tokens, maskable, count, rng)
    else:
      chosen = np.sort(rng.permutation(maskable)[:count])
    labels = tokens[chosen]

    drawn = rng.random(len(chosen))
    usual = self._usual
    random = usual[rng.integers(0, len(usual), len(chosen), dtype=np.int32)]
    tokens[chosen] = np.where(drawn < self.mask_rate + self.random_rate, random, labels)
    tokens[chosen[drawn < self.mask_rate]] = _mask_id(self.tokenizer)
    return {
      **row,
      'tokens': tokens,
      'masked_positions': self._filled(chosen, np.int32),
      'labels': self._filled(labels, np.int32),
      'weights': self._filled(np.ones(len(chosen)), np.float32),
    }

  @functools.cached_property
  def _usual(self) -> np.ndarray:
    """The ids that are not special."""
    return np.flatnonzero(~self.tokenizer.special).astype(np.int32)

  def _filled(self, values: np.ndarray, dtype: type) -> np.ndarray:
    """The values and zeros in the places that are left."""
    places: np.ndarray = np.zeros(self.max_predictions, dtype)
    places[: len(values)] = values
    return places

  def _words(
    self, tokens: np.ndarray, maskable: np.ndarray, count: int, rng: np.random.Generator
  ) -> np.ndarray:
    """Places of whole words in random order, as long as no more than `count` places are taken."""
    word = np.cumsum(_breaks(self.tokenizer.word_starts(tokens), maskable))
    lengths = np.bincount(word)
    taken = np.zeros(len(lengths), bool)
    for i in rng.permutation(len(lengths)).tolist():
      if not count:
        break
      if lengths[i] <= count:
        taken[i] = True
        count -= int(lengths[i])
    return maskable[taken[word]]


def _mask_id(tokenizer: Tokenizer) -> int:
  if tokenizer.mask_id is None:
    raise UserError('the tokenizer has no mask token: masked language modelling needs one')
  return tokenizer.mask_id


def _breaks(starts: np.ndarray, places: np.ndarray) -> np.ndarray:
  """True where a place begins a word or does not follow the one before it."""
  breaks = starts[places]
  breaks[1:] |= np.diff(places) > 1
  breaks[:1] = False
  return breaks
