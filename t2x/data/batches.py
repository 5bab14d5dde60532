"""Batches as a function of the step.

The global batch at step s is a pure function of (seed, s), whatever the number of processes, workers
or restarts: example s * batch_size + j of an endless stream of epochs, each a permutation of the
rows. What a transform draws is a function of (seed, epoch, row). So resuming is starting at s.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2x.data.prepared_folders import fingerprint
from t2x.data.shuffling import shuffled
from t2x.errors import UserError

Batch = dict[str, np.ndarray]
Transform = Callable[[Mapping[str, Any], np.random.Generator], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Chain:
  """Transforms one after the other, which draw from one generator."""

  transforms: tuple[Transform, ...]

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> Mapping[str, Any]:
    """What the last one gives."""
    for transform in self.transforms:
      row = transform(row, rng)
    return row


class Batches:
  """`batches[step]` is this process's part of the global batch at that step: any step >= 0.

  Attributes:
    fingerprint: changes when the rows, the transform, the batch size or the seed do.
  """

  def __init__(
    self,
    rows: Sequence[Mapping[str, Any]],
    transform: Transform | None = None,
    *,
    batch_size: int,
    seed: int,
    shuffle: bool = True,
    process_index: int = 0,
    process_count: int = 1,
  ):
    """
    Args:
      rows: examples at random access, all arrays of one shape (after the transform).
      transform: `(row, rng) -> example`, picklable where workers are used; None: rows as they are.
      batch_size: rows of the global batch.
      seed: decides the order and what transforms draw.
      shuffle: False reads each epoch in order.
      process_index: which part of the global batch is read here.
      process_count: into how many parts it is cut; they follow each other.

    Raises:
      UserError: no rows, or a batch that cannot be cut evenly.
    """
    if not len(rows):
      raise UserError('there are no rows to make batches of')
    self.rows, self.transform, self.seed, self.shuffle = rows, transform, seed, shuffle
    self.batch_size = batch_size
    self.part = _part(batch_size, process_index, process_count)

  @property
  def num_batches(self) -> int:
    """Steps in which every row is seen at least once."""
    return -(-len(self.rows) // self.batch_size)

  @property
  def fingerprint(self) -> str:
    """Of the global stream of batches: the same on every process."""
    rows = getattr(self.rows, 'fingerprint', None) or _rows_fingerprint(self.rows)
    settings = self.batch_size, self.seed, self.shuffle
    return fingerprint(rows, len(self.rows), self.transform, *settings)

  def indices(self, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Epoch and row of each example of this process's part."""
    numbers = step * self.batch_size + np.arange(self.part.start, self.part.stop)
    if self.shuffle:
      return shuffled(numbers, len(self.rows), self.seed)
    epoch, index = np.divmod(numbers, len(self.rows))
    return epoch, index

  def __getitem__(self, step: int) -> Batch:
    pairs = zip(*self.indices(step), strict=True)
    return _stacked([_example(self, int(epoch), int(index)) for epoch, index in pairs])


class _EvaluationBatches(Sequence):
  """See `evaluation_batches`."""

  def __init__(self, rows, transform, batch_size, part):
    self.rows, self.transform, self.batch_size, self.part = rows, transform, batch_size, part
    self.seed = 0

  def __len__(self) -> int:
    return -(-len(self.rows) // self.batch_size)

  def __getitem__(self, step):
    if not 0 <= step < len(self):
      raise IndexError(f'batch {step} of {len(self)}')
    start = step * self.batch_size
    wanted = range(start + self.part.start, start + self.part.stop)
    # Where a process has no row left, row 0 lends its shapes.
    here = [i for i in wanted if i < len(self.rows)] or [0]
    batch = _stacked([_example(self, 0, i) for i in here])
    present = sum(i < len(self.rows) for i in wanted)
    return {name: _padded(value[:present], len(wanted)) for name, value in batch.items()}


def evaluation_batches(
  rows: Sequence[Mapping[str, Any]],
  transform: Transform | None,
  batch_size: int,
  *,
  process_index: int = 0,
  process_count: int = 1,
) -> Sequence[Batch]:
  """Every row once, in order; the last batch is filled with rows of zeros (segments, weights 0).

  What the transform draws is the same at each evaluation. Every process has the same number of
  batches. The result can be iterated, indexed, and handed to `prefetch`.
  """
  part = _part(batch_size, process_index, process_count)
  return _EvaluationBatches(rows, transform, batch_size, part)


def _part(batch_size: int, process_index: int, process_count: int) -> range:
  if batch_size < 1 or batch_size % process_count:
    raise UserError(
      f'a batch of {batch_size} rows cannot be cut into {process_count} equal parts: '
      'set Trainer.batch_size to a multiple of the number of processes'
    )
  size = batch_size // process_count
  return range(process_index * size, (process_index + 1) * size)


def _example(batches: Any, epoch: int, index: int) -> Mapping[str, Any]:
  row = batches.rows[index]
  if batches.transform is None:
    return row
  # The sign of the seed is a word of its own: SeedSequence takes no negative numbers.
  seed = [abs(batches.seed), int(batches.seed < 0), epoch, index]
  try:
    return batches.transform(row, np.random.default_rng(seed))
  except UserError as error:
    raise UserError(f'row {index}: {error}') from error


def _stacked(examples: Sequence[Mapping[str, Any]]) -> Batch:
  batch = {}
  for name in examples[0]:
    arrays = [np.asarray(example[name]) for example in examples]
    if len({array.shape for array in arrays}) > 1:
      shapes = collections.Counter(array.shape for array in arrays)
      raise UserError(f"rows of one batch differ in the shape of '{name}': {dict(shapes)}")
    batch[name] = np.stack(arrays)
  return batch


def _padded(array: np.ndarray, size: int) -> np.ndarray:
  padding = np.zeros((size - len(array), *array.shape[1:]), array.dtype)
  return np.concatenate([array, padding])


def _rows_fingerprint(rows: Sequence[Mapping[str, Any]]) -> str:
  """Of the first, a middle and the last row."""

  def contents(row: Mapping[str, Any]) -> Iterator[object]:
    for name in sorted(row):
      array = np.asarray(row[name])
      # The bytes of an array of objects are addresses.
      content = row[name] if array.dtype.hasobject else array.tobytes()
      yield from (name, array.shape, array.dtype.str, content)

  return fingerprint(*(list(contents(rows[i])) for i in (0, len(rows) // 2, len(rows) - 1)))
