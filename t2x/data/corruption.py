"""Replaces spans of text by sentinels (T5, https://arxiv.org/abs/1910.10683, section 3.1.4), drawn anew
each epoch. Lengths and spans are those of T5's own `random_spans_helper` and
`random_spans_noise_mask` (https://github.com/google-research/text-to-text-transfer-transformer), but
that the helper counts no span in a text too short for one, where the mask hides one all the same."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from t2x.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorruptSpans:
  """A transform that makes a row of text a source with gaps and a target that fills them.

  Kept and hidden spans take turns, a kept one first. In the source each hidden span is one sentinel,
  in the target each kept span is that same sentinel, so the hidden tokens follow it; both end
  with eos. How many tokens and spans are hidden is fixed by the length of the text; where they are
  is drawn: every way to cut the tokens into spans of at least one is as likely as any other.

  Attributes:
    source_length: tokens of the source, sentinels and eos included; at least 3.
    eos_id: ends the source and the target.
    first_sentinel: id of the first sentinel of a row; those after it count down.
    rate: part of the tokens that are hidden.
    mean_span: mean length of a hidden span.

  Raises:
    UserError: a length, rate or mean that leaves nothing to hide or to keep.
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
        'at least 3, between 0 and 1, at least 1'
      )

  @property
  def text_length(self) -> int:
    """Tokens of text that fill a source: as many as fit, or T5's one less at a rate of one half."""
    return self._filled()[0]

  @property
  def target_length(self) -> int:
    """Tokens of the target, sentinels and eos included."""
    return self._filled()[1]

  @property
  def num_spans(self) -> int:
    """Hidden spans of a whole row, and so its sentinels."""
    return self._counts(self.text_length)[1]

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """`source`, `target` and their segments (1, or 0 for padding), int32, of a row's `tokens`."""
    tokens = np.asarray(row['tokens'], np.int32)[np.asarray(row['segments']) != 0]
    hidden = self.mask(len(tokens), rng)
    sides = {'source': (hidden, self.source_length), 'target': (~hidden, self.target_length)}
    out = {}
    for side, (replaced, length) in sides.items():
      ids = np.append(self._marked(tokens, replaced), self.eos_id)
      out[side] = np.zeros(length, np.int32)
      out[side][: len(ids)] = ids
      out[f'{side}_segments'] = (np.arange(length) < len(ids)).astype(np.int32)
    return out

  def mask(self, length: int, rng: np.random.Generator) -> Bool[np.ndarray, 'length']:
    """True for the hidden ones of so many tokens."""
    # A single token is the first of two, which is kept.
    noise, spans = self._counts(max(length, 2))
    lengths = np.empty(2 * spans, np.int64)
    lengths[1::2] = _segmentation(noise, spans, rng)
    lengths[::2] = _segmentation(max(length, 2) - noise, spans, rng)
    return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)[:length]

  def _counts(self, length: int) -> tuple[int, int]:
    """Hidden tokens and spans of so many tokens of text."""
    noise = min(max(round(length * self.rate), 1), length - 1)
    spans = max(round(noise / self.mean_span), 1)
    return noise, min(spans, length - noise)

  def _lengths(self, length: int) -> tuple[int, int]:
    """Tokens of source and target."""
    noise, spans = self._counts(length)
    return length - noise + spans + 1, noise + spans + 1

  def _filled(self) -> tuple[int, int]:
    """Tokens of text that fill a source, and of its target."""
    # One token more that is hidden in a span that is there makes the source no longer.
    length = self.source_length - 1
    while self._lengths(length + 1)[0] <= self.source_length:
      length += 1
    source, target = self._lengths(length)
    # As T5: at one half the target shall be no longer than the source.
    less = int(self.rate == 0.5 and target > source)
    return length - less, target - less

  def _marked(
    self, tokens: Int[np.ndarray, 'length'], replaced: Bool[np.ndarray, 'length']
  ) -> Int[np.ndarray, 'shorter']:
    """The tokens with each run of replaced ones as a sentinel."""
    starts = replaced.copy()
    starts[1:] &= ~replaced[:-1]
    sentinels = self.first_sentinel + 1 - np.cumsum(starts)
    return np.where(starts, sentinels, tokens)[starts | ~replaced]


def _segmentation(
  items: int, segments: int, rng: np.random.Generator
) -> Int[np.ndarray, 'segments']:
  """Lengths >= 1 of so many segments that so many items are cut into."""
  cuts = np.sort(rng.permutation(items - 1)[: segments - 1]) + 1
  return np.diff(np.concatenate([[0], cuts, [items]]))
