"""Subword regularisation: draws the pieces of a row's words anew in each epoch (BPE dropout,
Provilkov et al. 2020, https://arxiv.org/abs/1910.13267; Kudo 2018, https://arxiv.org/abs/1804.10959)."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from t2x.base.ranges import Fraction, Range
from t2x.data.packing import add_positions
from t2x.data.plans import padded, segments_of
from t2x.data.tokenizers.base import Tokenizer

__all__ = ['SampledPieces']


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledPieces:
  """Draws the pieces of training text at random; evaluation uses the tokenizer's own pieces.

  The pieces are a function of seed, epoch and row. Cached rows have free space, which is filled as
  the words of a row are decoded and encoded again. This takes 30 to 100 microseconds per word on
  one core: with a small model, set Trainer.num_workers.

  Attributes:
    rate: fraction of BPE's merges to drop; for a unigram model, fraction of the words to sample.
    room: ratio of the length of a row to the length of its text in the cache. Dropping a tenth of
      the merges makes a text about 1.2 times as long.
  """

  rate: Fraction = 0.1
  room: Annotated[float, Range('1 <= x')] = 1.25

  def planned(self, length: int) -> int:
    """Returns the number of tokens that a cached row of `length` tokens is filled with."""
    return max(int(length / self.room), 1)

  def transform(self, tokenizer: Tokenizer, lengths: Mapping[str, int], train: bool) -> 'Resegment':
    """Returns the transform of rows with columns of these lengths; it samples only for training."""
    return Resegment(tokenizer=tokenizer, lengths=dict(lengths), rate=self.rate if train else 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resegment:
  """Draws other pieces for the words of a row, and makes the row longer.

  Words are processed in random order. A word keeps its pieces if the new pieces do not fit, or if
  decoding and encoding it does not restore them.

  Attributes:
    tokenizer: samples the pieces.
    lengths: column -> length of the returned row.
    rate: rate of `Tokenizer.sample`; 0 samples nothing.
  """

  tokenizer: Tokenizer = dataclasses.field(repr=False)
  lengths: Mapping[str, int]
  rate: float

  def __post_init__(self):
    if self.rate:
      # Raises early if the tokenizer cannot sample.
      self.tokenizer.sample('', self.rate, np.random.default_rng(0))

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the row with the ids, segments and positions of each column at its new length."""
    changed = dict(row)
    for column, length in self.lengths.items():
      tokenizer = self.tokenizer.target if column == 'target' else self.tokenizer
      used = int(np.count_nonzero(row[segments_of(column)]))
      ids, segments = row[column][:used], row[segments_of(column)][:used]
      if self.rate and used:
        ids, segments = self._resample(tokenizer, ids, segments, length, rng)
      for name, values in ((column, ids), (segments_of(column), segments)):
        changed[name] = padded(values, length)
    return add_positions(changed, self.lengths)

  def _resample(
    self,
    tokenizer: Tokenizer,
    ids: np.ndarray,
    segments: np.ndarray,
    length: int,
    rng: np.random.Generator,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns resampled ids and their segments, at most `length` of them."""
    starts = tokenizer.word_starts(ids) | tokenizer.special[ids]
    starts[1:] |= tokenizer.special[ids[:-1]] | (segments[1:] != segments[:-1])
    word_indices = np.flatnonzero(starts)
    words = [part.tolist() for part in np.split(ids, word_indices[1:])]
    texts = [tokenizer.decode(word) for word in words]
    encoded = tokenizer.encode_batch(texts)
    room = length - len(ids)
    for i in rng.permutation(len(words)).tolist():
      if encoded[i] != words[i]:
        continue
      sampled = tokenizer.sample(texts[i], self.rate, rng)
      if len(sampled) - len(words[i]) <= room:
        room -= len(sampled) - len(words[i])
        words[i] = sampled
    counts = [len(word) for word in words]
    return np.concatenate(words), np.repeat(segments[word_indices], counts)
