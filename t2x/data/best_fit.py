"""Best-fit packing: a text is added to the row with the least free room in which it fits."""

import collections
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from t2x.base.errors import UserError
from t2x.data.packing import DocumentPlan, PackPairs, PairPlan, check_positive, empty_row, put
from t2x.data.plans import Column, Row, by_size

__all__ = ['BestFitDocuments', 'BestFitPairs', 'JoinedPairs']


@dataclasses.dataclass(frozen=True)
class BestFitDocuments(DocumentPlan):
  """Splits only documents that are longer than a row, and leaves padding in the rows instead.

  A longer document is split every `length` tokens. The pieces of a window are packed by decreasing
  length, each into the row with the least room that fits (best-fit decreasing; Ding et al. 2024,
  https://arxiv.org/abs/2404.10830). For the content of rows see `DocumentPlan`. `counts['divided']` is
  the number of documents in more than one row.

  Attributes:
    window: number of rows that are packed together. Larger windows leave less padding; their tokens
      are in memory.
  """

  window: int = 4096

  def __post_init__(self):
    super().__post_init__()
    check_positive(self, 'window')

  def pack(self, examples, special, counts):
    """Yields the rows of each window in the order of their longest piece, the longest first."""
    documents = self.documents(examples, special, counts)
    for window in by_size(documents, len, self.window * self.length):
      counts['divided'] += sum(len(document) > self.length for document in window)
      starts = ((d, start) for d in window for start in range(0, len(d), self.length))
      yield from self._rows([d[start : start + self.length] for d, start in starts])

  def _rows(self, pieces: Sequence[np.ndarray]) -> Iterator[Row]:
    for indices in best_fit_decreasing([len(piece) for piece in pieces], self.length):
      row, used = empty_row(self.lengths), 0
      for segment, i in enumerate(indices, 1):
        put(row, 'tokens', used, pieces[i], segment)
        used += len(pieces[i])
      yield row


def best_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
  """Packs items into bins: by decreasing size, each into the bin with the least room that fits.

  The rooms in use are the bits of an integer, so an item costs O(capacity / 64) operations.

  Args:
    sizes: size of each item, from 1 to `capacity`.
    capacity: size of a bin.

  Returns:
    The indices of the items of each bin.
  """
  bins: list[list[int]] = []
  bins_by_room: dict[int, list[int]] = collections.defaultdict(list)
  rooms = 0  # Bit r is set if a bin has room r.
  for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
    fitting = rooms >> sizes[i]
    if fitting:
      # The lowest set bit is the least room.
      room = sizes[i] + (fitting & -fitting).bit_length() - 1
      number = bins_by_room[room].pop()
      if not bins_by_room[room]:
        rooms ^= 1 << room
    else:
      room, number = capacity, len(bins)
      bins.append([])
    bins[number].append(i)
    if room > sizes[i]:
      bins_by_room[room - sizes[i]].append(number)
      rooms |= 1 << room - sizes[i]
  return bins


@dataclasses.dataclass(frozen=True)
class BestFitPairs(PackPairs):
  """`PackPairs` that adds each pair to the open row with the least free room, over both sides.

  Attributes:
    open_rows: maximum number of open rows, which are searched for each pair; beyond it, the fullest
      row is closed.
  """

  def _choose(self, fitting, rooms):
    return min(fitting, key=lambda i: sum(rooms[i]), default=None)


@dataclasses.dataclass(frozen=True)
class JoinedPairs(PairPlan):
  """Rows of `length` tokens with several pairs, each a segment: source, eos, target, eos.

  The column `in_source` is 1 for the tokens of sources and their eos. Pairs are packed as in
  `BestFitDocuments`.

  Attributes:
    source_length: maximum number of source tokens of a pair, including eos.
    target_length: maximum number of target tokens of a pair, including eos.
    length: tokens per row, at least `source_length + target_length`.
    too_long: 'drop' to drop longer pairs, 'cut' to truncate them (they keep their eos).
    window: number of rows that are packed together.
  """

  length: int
  window: int = dataclasses.field(default=1024, kw_only=True)

  def __post_init__(self):
    super().__post_init__()
    check_positive(self, 'window')
    longest = self.source_length + self.target_length
    if self.length < longest:
      raise UserError(
        f'rows of {self.length} tokens are too short for a source of {self.source_length} and a target '
        f'of {self.target_length}: set the length to at least {longest}'
      )

  @property
  def columns(self):
    """Ids, segments and `in_source`."""
    segment = np.uint16 if self.length < 1 << 16 else np.int32
    return {
      'tokens': Column(self.length, None),
      'segments': Column(self.length, segment),
      'in_source': Column(self.length, np.uint8),
    }

  def pack(self, examples, special, counts):
    """Yields the rows of each window in the order of their longest pair, the longest first."""
    # One text begins with the prefix ids of the model: that of the source.
    pairs = (
      (pair['source'], pair['target'][len(special.before) :])
      for pair in self._fit_pairs(examples, special, counts)
    )
    for window in by_size(pairs, lambda pair: sum(map(len, pair)), self.window * self.length):
      yield from self._rows(window)

  def _rows(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Iterator[Row]:
    sizes = [len(source) + len(target) for source, target in pairs]
    for indices in best_fit_decreasing(sizes, self.length):
      row, used = empty_row({'tokens': self.length}), 0
      row['in_source'] = np.zeros(self.length, np.uint8)
      for segment, i in enumerate(indices, 1):
        put(row, 'tokens', used, np.concatenate(pairs[i]), segment)
        row['in_source'][used : used + len(pairs[i][0])] = 1
        used += sizes[i]
      yield row
