"""Token masking for masked language modelling (BERT, https://arxiv.org/abs/1810.04805).

Masks are drawn anew in each epoch (RoBERTa, https://arxiv.org/abs/1907.11692), by token, whole word or n-gram.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from t2x.base.errors import UserError
from t2x.data.plans import padded
from t2x.data.token_choices import SingleTokens, TokenChoice
from t2x.data.tokenizers.base import Tokenizer

__all__ = ['MaskTokens', 'OrderTokens']


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskTokens:
  """Masks tokens of a row and adds the original ids as labels.

  Of n tokens that are neither special nor padding, rate * n are chosen, rounded up or down at
  random so that the mean is exact. Choices of whole words may be fewer, by less than one word.
  Special tokens and padding are never chosen.

  Attributes:
    tokenizer: defines the mask token, the vocabulary and the word boundaries.
    max_predictions: maximum number of predictions per row, at least rate * length.
    rate: fraction of the tokens to predict.
    mask_rate: fraction of the chosen tokens that the mask token replaces.
    random_rate: fraction of the chosen tokens that a random token replaces; the rest is unchanged.
    choose: chooses the tokens.
    types: types of the tokens that may be chosen; None: all.
  """

  tokenizer: Tokenizer = dataclasses.field(repr=False)
  max_predictions: int
  rate: float = 0.15
  mask_rate: float = 0.8
  random_rate: float = 0.1
  choose: TokenChoice = SingleTokens()
  types: tuple[int, ...] | None = None

  def __post_init__(self):
    rates = self.rate, self.mask_rate, self.random_rate
    if not all(0 <= rate <= 1 for rate in rates) or self.mask_rate + self.random_rate > 1:
      raise UserError(
        f'rate = {self.rate}, mask_rate = {self.mask_rate}, random_rate = {self.random_rate}: '
        'each must be from 0 to 1, and mask_rate + random_rate at most 1'
      )
    if self.mask_rate:
      mask_id(self.tokenizer)

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the row with masked `tokens`, and with `masked_positions` int32 [max_predictions] in
    ascending order, `labels` int32 and `weights` float32 (1, or 0 for unused entries)."""
    tokens = np.array(row['tokens'], np.int32)
    special = self.tokenizer.special
    is_maskable = ~special[tokens] & (row['segments'] != 0)
    if self.types is not None:
      is_maskable &= np.isin(row['types'], self.types)
    maskable = np.flatnonzero(is_maskable)
    count = min(int(self.rate * len(maskable) + rng.random()), self.max_predictions)
    chosen = maskable[self.choose(self._words(tokens, maskable), count, rng)]
    labels = tokens[chosen]

    drawn = rng.random(len(chosen))
    ordinary = self._ordinary_ids
    random = ordinary[rng.integers(0, len(ordinary), len(chosen), dtype=np.int32)]
    tokens[chosen] = np.where(drawn < self.mask_rate + self.random_rate, random, labels)
    if self.mask_rate:
      tokens[chosen[drawn < self.mask_rate]] = mask_id(self.tokenizer)
    return {
      **row,
      'tokens': tokens,
      'masked_positions': padded(chosen, self.max_predictions),
      'labels': padded(labels, self.max_predictions),
      'weights': padded(np.ones(len(chosen)), self.max_predictions, np.float32),
    }

  @functools.cached_property
  def _ordinary_ids(self) -> np.ndarray:
    """All ids that are not special."""
    return np.flatnonzero(~self.tokenizer.special).astype(np.int32)

  def _words(
    self, tokens: Int[np.ndarray, 'length'], maskable: Int[np.ndarray, 'tokens']
  ) -> Int[np.ndarray, 'tokens']:
    """Returns the number of the word of each maskable token; other tokens between two words count as a word."""
    starts, other = self.tokenizer.word_starts(tokens), np.ones(len(tokens), bool)
    other[maskable] = False
    starts[1:] |= other[1:] | other[:-1]
    return np.cumsum(starts)[maskable]


@dataclasses.dataclass(frozen=True)
class OrderTokens:
  """Adds `order`: 1, 2, ... for the tokens that `MaskTokens` chose, in random order, and 0 for all others."""

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    chosen = row['masked_positions'][: int(row['weights'].sum())]
    order = np.zeros(len(row['tokens']), np.int32)
    order[chosen] = 1 + rng.permutation(len(chosen))
    return {**row, 'order': order}


def mask_id(tokenizer: Tokenizer) -> int:
  """Returns the id of the mask token; raises UserError if the tokenizer has no mask token."""
  if tokenizer.mask_id is None:
    raise UserError('masks need a tokenizer with a mask token: choose another tokenizer')
  return tokenizer.mask_id
