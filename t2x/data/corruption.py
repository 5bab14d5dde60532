"""Span corruption (T5, https://arxiv.org/abs/1910.10683, section 3.1.4), drawn anew in each epoch.

Lengths and spans follow `random_spans_helper` and `random_spans_noise_mask` of T5
(https://github.com/google-research/text-to-text-transfer-transformer). In a very short text T5's
helper counts no span although its mask hides one; here both count one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from t2x.base.errors import UserError
from t2x.data.plans import padded

__all__ = ['CorruptSpans', 'FitSides']


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorruptSpans:
  """Converts a row of text to a source with hidden spans and a target that restores them.

  Visible and hidden spans alternate, beginning with a visible span. The source replaces each hidden
  span by one sentinel. The target replaces each visible span by the sentinel of the hidden span
  that follows it. Both end with eos. The length of the text determines the numbers of hidden tokens
  and spans. Their boundaries are drawn uniformly among all divisions into spans of at least one
  token.

  Attributes:
    source_length: tokens of the source, including sentinels and eos; at least 3.
    eos_id: id at the end of the source and the target.
    first_sentinel: id of the first sentinel of a row; the next sentinels count down.
    rate: fraction of the tokens to hide.
    mean_span: mean length of a hidden span in tokens.

  Raises:
    UserError: source_length < 3, rate not between 0 and 1, or mean_span < 1.
  """

  source_length: int
  eos_id: int
  first_sentinel: int
  rate: float = 0.15
  mean_span: float = 3.0

  def __post_init__(self):
    if self.source_length < 3 or not 0 < self.rate < 1 or self.mean_span < 1:
      raise UserError(
        f'source_length = {self.source_length}, rate = {self.rate}, mean_span = {self.mean_span}: '
        'source_length must be at least 3, rate between 0 and 1, mean_span at least 1'
      )

  @property
  def text_length(self) -> int:
    """Number of text tokens that fill a source; as in T5, at rate 0.5 it may be one fewer."""
    return self._full_lengths()[0]

  @property
  def target_length(self) -> int:
    """Number of target tokens, including sentinels and eos."""
    return self._full_lengths()[1]

  @property
  def num_spans(self) -> int:
    """Number of hidden spans of a full row, which is its number of sentinels."""
    return self._counts(self.text_length)[1]

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns int32 `source`, `target` and their segments (1, or 0 for padding) of `tokens`."""
    tokens = np.asarray(row['tokens'], np.int32)[np.asarray(row['segments']) != 0]
    hidden = self.mask(len(tokens), rng)
    ids = {
      side: np.append(self._with_sentinels(tokens, replaced), self.eos_id)
      for side, replaced in (('source', hidden), ('target', ~hidden))
    }
    return to_sides(ids, {'source': self.source_length, 'target': self.target_length})

  def mask(self, length: int, rng: np.random.Generator) -> Bool[np.ndarray, 'length']:
    """Draws a mask of `length` tokens that is True for hidden tokens."""
    # A single token is treated as the first of two, which is visible.
    noise, spans = self._counts(max(length, 2))
    lengths = np.empty(2 * spans, np.int64)
    lengths[1::2] = _draw_lengths(noise, spans, rng)
    lengths[::2] = _draw_lengths(max(length, 2) - noise, spans, rng)
    return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)[:length]

  def _counts(self, length: int) -> tuple[int, int]:
    """Returns the numbers of hidden tokens and of spans in `length` tokens of text."""
    noise = min(max(round(length * self.rate), 1), length - 1)
    spans = max(round(noise / self.mean_span), 1)
    return noise, min(spans, length - noise)

  def _lengths(self, length: int) -> tuple[int, int]:
    """Returns the numbers of source and target tokens."""
    noise, spans = self._counts(length)
    return length - noise + spans + 1, noise + spans + 1

  def _full_lengths(self) -> tuple[int, int]:
    """Returns the number of text tokens that fill a source, and the target length."""
    # A longer text may have a source of the same length, if the new token joins a hidden span.
    length = self.source_length - 1
    while self._lengths(length + 1)[0] <= self.source_length:
      length += 1
    source, target = self._lengths(length)
    # As in T5: at rate 0.5 the target must not be longer than the source.
    excess = int(self.rate == 0.5 and target > source)
    return length - excess, target - excess

  def _with_sentinels(
    self, tokens: Int[np.ndarray, 'length'], replaced: Bool[np.ndarray, 'length']
  ) -> Int[np.ndarray, 'shorter']:
    """Returns the tokens with a sentinel in place of each run of `replaced` tokens."""
    starts = replaced.copy()
    starts[1:] &= ~replaced[:-1]
    sentinels = self.first_sentinel + 1 - np.cumsum(starts)
    return np.where(starts, sentinels, tokens)[starts | ~replaced]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitSides:
  """Adds ids before the source and pads both sides, so that rows of several corruptions have one shape.

  Attributes:
    prefix: ids before the source.
    source_length: tokens of the source, with the prefix.
    target_length: tokens of the target.
  """

  prefix: tuple[int, ...]
  source_length: int
  target_length: int

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the padded sides and their segments."""
    lengths = {'source': self.source_length, 'target': self.target_length}
    ids = {
      side: np.asarray(row[side])[np.asarray(row[f'{side}_segments']) != 0] for side in lengths
    }
    ids['source'] = np.concatenate([np.array(self.prefix, np.int32), ids['source']])
    return to_sides(ids, lengths)


def to_sides(ids: Mapping[str, np.ndarray], lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
  """Returns the ids of each side with padding, and their segments (1, or 0 for padding)."""
  result = {}
  for side, length in lengths.items():
    result[side] = padded(ids[side], length)
    result[f'{side}_segments'] = padded(np.ones(len(ids[side])), length)
  return result


def _draw_lengths(
  items: int, segments: int, rng: np.random.Generator
) -> Int[np.ndarray, 'segments']:
  """Draws the lengths, each at least 1, of the segments that `items` items are divided into."""
  cuts = np.sort(rng.permutation(items - 1)[: segments - 1]) + 1
  return np.diff(np.concatenate([[0], cuts, [items]]))
