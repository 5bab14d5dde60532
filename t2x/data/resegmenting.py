"""Subword regularisation: the words of a row in other pieces each time it is seen (BPE dropout,
Provilkov et al. 2020, https://arxiv.org/abs/1910.13267; Kudo 2018, https://arxiv.org/abs/1804.10959)."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from t2x.data.packing import add_positions
from t2x.data.plans import segments_of
from t2x.data.tokenizers import Tokenizer
from t2x.ranges import Fraction, Range


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledPieces:
  """A task's training text in pieces drawn at random; evaluation keeps the tokenizer's own.

  What is drawn is a function of seed, epoch and row. Rows are cached as usual, with room left over;
  then each word of a row is decoded and encoded anew while the room lasts. That takes one core 30
  to 100 microseconds a word: with a small model, set Trainer.num_workers.

  Attributes:
    rate: part of BPE's merges that are left out; of a unigram model, part of the words that are drawn.
    room: length of a row over that of the text that is planned for it. Dropping a tenth of the merges
      makes a text some 1.2 times as long.
  """

  rate: Fraction = 0.1
  room: Annotated[float, Range('1 <= x')] = 1.25

  def planned(self, length: int) -> int:
    """How much of a row is filled when it is cached."""
    return max(int(length / self.room), 1)

  def transform(self, tokenizer: Tokenizer, lengths: Mapping[str, int], train: bool) -> 'Resegment':
    """Of rows with these columns, to these lengths."""
    return Resegment(tokenizer=tokenizer, lengths=dict(lengths), rate=self.rate if train else 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resegment:
  """A transform that cuts the words of a row into other pieces, and makes the row longer.

  Words are taken in random order; one whose pieces do not fit any more, or that does not come back
  unchanged when decoded and encoded, keeps the pieces that it has.

  Attributes:
    tokenizer: draws the pieces.
    lengths: column -> length of the row that is given back.
    rate: as `Tokenizer.sample` has it; 0 draws nothing.
  """

  tokenizer: Tokenizer = dataclasses.field(repr=False)
  lengths: Mapping[str, int]
  rate: float

  def __post_init__(self):
    if self.rate:
      # Tells a tokenizer that cannot.
      self.tokenizer.sample('', self.rate, np.random.default_rng(0))

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The row with the ids, segments and positions of each column at its new length."""
    changed = dict(row)
    for column, length in self.lengths.items():
      tokenizer = self.tokenizer.target if column == 'target' else self.tokenizer
      used = int(np.count_nonzero(row[segments_of(column)]))
      ids, segments = row[column][:used], row[segments_of(column)][:used]
      if self.rate and used:
        ids, segments = self._drawn(tokenizer, ids, segments, length, rng)
      for name, values in ((column, ids), (segments_of(column), segments)):
        changed[name] = np.zeros(length, np.int32)
        changed[name][: len(values)] = values
    return add_positions(changed, self.lengths)

  def _drawn(
    self,
    tokenizer: Tokenizer,
    ids: np.ndarray,
    segments: np.ndarray,
    length: int,
    rng: np.random.Generator,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Ids and segments, at most `length` of them."""
    starts = tokenizer.word_starts(ids) | tokenizer.special[ids]
    starts[1:] |= tokenizer.special[ids[:-1]] | (segments[1:] != segments[:-1])
    places = np.flatnonzero(starts)
    words = [part.tolist() for part in np.split(ids, places[1:])]
    texts = [tokenizer.decode(word) for word in words]
    again = tokenizer.encode_batch(texts)
    room = length - len(ids)
    for i in rng.permutation(len(words)).tolist():
      if again[i] != words[i]:
        continue
      drawn = tokenizer.sample(texts[i], self.rate, rng)
      if len(drawn) - len(words[i]) <= room:
        room -= len(drawn) - len(words[i])
        words[i] = drawn
    counts = [len(word) for word in words]
    return np.concatenate(words), np.repeat(segments[places], counts)
