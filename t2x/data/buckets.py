"""Length buckets: batches of rows of similar length, without most of the padding.

A row belongs to the first bucket that is long enough for all its columns. Each batch has rows of one bucket, cut to
its length. The batches of the buckets are interleaved in proportion to their numbers of rows (`t2x.data.mixtures`), so
that a batch depends only on the seed and the step, and rows of all buckets are read equally often.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2x.data.batches import Order, seed_of, shuffled
from t2x.data.cache import Rows
from t2x.data.mixtures import interleaved
from t2x.data.plans import segments_of

__all__ = ['Buckets', 'ByLength', 'CutToBucket', 'bucket_lengths']

# Number of rows whose lengths are computed at once.
CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True)
class Buckets:
  """Lengths of rows.

  Attributes:
    columns: column -> maximum length.
    lengths: the lengths of all buckets but the last, ascending; the last has the maximum lengths.
  """

  columns: Mapping[str, int]
  lengths: tuple[int, ...]

  def __len__(self) -> int:
    return len(self.lengths) + 1

  def sizes(self, bucket: int) -> dict[str, int]:
    """Returns column -> length in a bucket."""
    longest = max(self.columns.values())
    length = (*self.lengths, longest)[bucket]
    return {column: min(length, size) for column, size in self.columns.items()}

  def buckets_of(self, rows: Rows) -> np.ndarray:
    """Returns the bucket of each row, uint8 [rows]."""
    return np.concatenate([np.empty(0, np.uint8), *self._chunks(rows)])

  def _chunks(self, rows: Rows) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), CHUNK):
      longest = np.max(
        [rows.lengths(column, start, start + CHUNK) for column in self.columns], axis=0
      )
      yield np.searchsorted(np.array(self.lengths), longest).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class CutToBucket:
  """Cuts the padding of a row to the length of its bucket.

  Attributes:
    buckets: the buckets.
  """

  buckets: Buckets

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the shorter columns."""
    used = [np.count_nonzero(row[segments_of(column)]) for column in self.buckets.columns]
    sizes = self.buckets.sizes(int(np.searchsorted(np.array(self.buckets.lengths), max(used))))
    return {
      name: value[: next(size for column, size in sizes.items() if name.startswith(column))]
      for name, value in row.items()
    }


class ByLength(Order):
  """Order of the rows in which each batch has rows of one bucket.

  Args:
    buckets: the bucket of each row.
    batch_size: rows per batch.
    seed: seed of the order.
  """

  def __init__(self, buckets: np.ndarray, batch_size: int, seed: int):
    members = [np.flatnonzero(buckets == bucket) for bucket in range(int(buckets.max()) + 1)]
    self.rows = [found.astype(np.int32) for found in members if len(found)]
    self.batch_size = batch_size
    self.seeds = [seed_of(seed, f'bucket {number}') for number in range(len(self.rows))]

  @property
  def identity(self) -> object:
    return ['by length', [len(rows) for rows in self.rows]]

  def __call__(self, numbers: range) -> tuple[np.ndarray, np.ndarray]:
    epochs, indices = [], []
    while numbers:
      step, first = divmod(numbers.start, self.batch_size)
      count = min(len(numbers), self.batch_size - first)
      ((bucket, place),) = interleaved([len(rows) for rows in self.rows], range(step, step + 1))
      rows, start = self.rows[bucket], place * self.batch_size + first
      epoch, index = shuffled(np.arange(start, start + count), len(rows), self.seeds[bucket])
      epochs.append(epoch)
      indices.append(rows[index].astype(np.int64))
      numbers = numbers[count:]
    return np.concatenate(epochs), np.concatenate(indices)


def bucket_lengths(lengths: Sequence[int], longest: int) -> tuple[int, ...]:
  """Returns the lengths of all buckets but the last: those below the maximum, sorted."""
  return tuple(sorted({length for length in lengths if length < longest}))
