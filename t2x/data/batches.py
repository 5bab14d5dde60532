"""Batches as a function of the step.

The global batch at step s is a pure function of (seed, s), independent of the number of processes,
workers and restarts: its example j is number s * batch_size + j of an endless stream of epochs,
each a permutation of the rows. The random draws of a transform are a function of (seed, epoch,
row). Resuming at step s therefore needs no saved state.
"""

import collections
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from t2x.base.errors import UserError
from t2x.data.prepared_folders import fingerprint, is_former
from t2x.data.sources.base import BulkExamples, Source, example_names, label_values, read_at

__all__ = ['Batches', 'Chain', 'Order', 'Repeated', 'evaluation_batches']

Batch = dict[str, np.ndarray]
# Rounds of the network that shuffles.
_ROUNDS = 8
# `(row, rng) -> row`, or `(row, rng, rows) -> row` if its attribute `needs_rows` is True: `rows` are all rows of the
# split, before any transform.
Transform = Callable[..., Mapping[str, Any]]


def needs_rows(transform: Transform | None) -> bool:
  """Returns whether a transform declares that it reads other rows."""
  return getattr(transform, 'needs_rows', False)


def transformed(
  transform: Transform | None,
  row: Mapping[str, Any],
  rng: np.random.Generator,
  rows: Sequence[Mapping[str, Any]],
) -> Mapping[str, Any]:
  """Returns the output of a transform, which gets `rows` if it needs them; None: no change."""
  if transform is None:
    return row
  return transform(row, rng, rows) if needs_rows(transform) else transform(row, rng)


@dataclasses.dataclass(frozen=True)
class Chain:
  """Applies transforms in order, all with the same random generator."""

  transforms: tuple[Transform, ...]

  @property
  def needs_rows(self) -> bool:
    """Whether one of the transforms needs other rows."""
    return any(map(needs_rows, self.transforms))

  def __call__(
    self,
    row: Mapping[str, Any],
    rng: np.random.Generator,
    rows: Sequence[Mapping[str, Any]] = (),
  ) -> Mapping[str, Any]:
    """Returns the output of the last transform."""
    for transform in self.transforms:
      row = transformed(transform, row, rng, rows)
    return row


class Order(Protocol):
  """The row of each number of an endless stream."""

  @property
  def identity(self) -> object:
    """Identifies the order, apart from the seed."""
    ...

  def __call__(self, numbers: range) -> tuple[np.ndarray, np.ndarray]:
    """Returns the epoch and the row index of consecutive numbers, int64 [len(numbers)]."""
    ...


@dataclasses.dataclass(frozen=True)
class Shuffled(Order):
  """Every row once per epoch; each epoch has its own order."""

  size: int
  seed: int
  identity = True

  def __call__(self, numbers: range) -> tuple[np.ndarray, np.ndarray]:
    return shuffled(np.arange(numbers.start, numbers.stop), self.size, self.seed)


@dataclasses.dataclass(frozen=True)
class Repeated(Order):
  """Every row of a random order several times in sequence, with other draws of the transform (repeated augmentation,
  https://arxiv.org/abs/1902.05509).

  Attributes:
    size: number of rows.
    seed: seed of the order.
    count: number of times.
  """

  size: int
  seed: int
  count: int

  @property
  def identity(self) -> object:
    return ('repeated', self.count)

  def __call__(self, numbers: range) -> tuple[np.ndarray, np.ndarray]:
    """Returns a number of its own as the epoch of each copy, so that the draws differ."""
    places, copies = np.divmod(np.arange(numbers.start, numbers.stop), self.count)
    epochs, indices = shuffled(places, self.size, self.seed)
    return epochs * self.count + copies, indices


class Batches:
  """`batches[step]` is this process's share of the global batch at any step >= 0.

  Attributes:
    fingerprint: changes when the rows, the transform, the batch size or the seed change.
  """

  def __init__(
    self,
    rows: Sequence[Mapping[str, Any]],
    transform: Transform | None = None,
    *,
    batch_size: int,
    seed: int,
    order: Order | None = None,
    process_index: int = 0,
    process_count: int = 1,
  ):
    """
    Args:
      rows: random-access examples; after the transform, the shapes of all examples must agree.
      transform: `(row, rng) -> example`, or `(row, rng, rows)` if it declares `needs_rows`; picklable if worker
        processes are used; None: no change.
      batch_size: number of rows in the global batch.
      seed: seed of the order and of the transform's random draws.
      order: order of the rows; None: `Shuffled`.
      process_index: index of this process, which reads the share of that index.
      process_count: number of equal consecutive shares of the global batch.

    Raises:
      UserError: there are no rows, or batch_size is not a multiple of process_count.
    """
    if not len(rows):
      raise UserError('the data has no rows: batches need at least one')
    self.rows, self.transform, self.seed = rows, transform, seed
    self.batch_size, self.order = batch_size, order or Shuffled(len(rows), seed)
    self.part = _share(batch_size, process_index, process_count)

  @property
  def num_batches(self) -> int:
    """Number of steps that read as many rows as there are."""
    return -(-len(self.rows) // self.batch_size)

  @property
  def fingerprint(self) -> str:
    """Identifies the global stream of batches; equal on every process."""
    settings = self.batch_size, self.seed, self.order.identity
    return fingerprint(rows_fingerprint(self.rows), len(self.rows), self.transform, *settings)

  def indices(self, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the epoch and the row index of each example in this process's share of a batch."""
    start = step * self.batch_size
    return self.order(range(start + self.part.start, start + self.part.stop))

  def global_indices(self, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the epoch and the row index of each example in the batch of all processes."""
    return self.order(range(step * self.batch_size, (step + 1) * self.batch_size))

  def __getitem__(self, step: int) -> Batch:
    pairs = zip(*self.indices(step), strict=True)
    return _stack([_example(self, int(epoch), int(index)) for epoch, index in pairs])


class _EvaluationBatches(Sequence):
  """The sequence that `evaluation_batches` returns."""

  def __init__(self, rows, transform, batch_size, part):
    self.rows, self.transform, self.batch_size, self.part = rows, transform, batch_size, part
    self.seed = 0

  def __len__(self) -> int:
    return -(-len(self.rows) // self.batch_size)

  def __getitem__(self, step):
    if not 0 <= step < len(self):
      raise IndexError(f'batch {step} is out of range: there are {len(self)} batches')
    start = step * self.batch_size
    indices = range(start + self.part.start, start + self.part.stop)
    # A process without rows takes the shapes from row 0.
    present_indices = [i for i in indices if i < len(self.rows)] or [0]
    batch = _stack([_example(self, 0, i) for i in present_indices])
    num_present = sum(i < len(self.rows) for i in indices)
    return {name: _pad(value[:num_present], len(indices)) for name, value in batch.items()}


def evaluation_batches(
  rows: Sequence[Mapping[str, Any]],
  transform: Transform | None,
  batch_size: int,
  *,
  process_index: int = 0,
  process_count: int = 1,
) -> Sequence[Batch]:
  """Returns batches with every row once, in order; zeros (segments, weights 0) pad the last batch.

  The transform's random draws are the same at each evaluation. Every process has the same number of
  batches. The result can be iterated, indexed and passed to `prefetch`.
  """
  part = _share(batch_size, process_index, process_count)
  return _EvaluationBatches(rows, transform, batch_size, part)


def _share(batch_size: int, process_index: int, process_count: int) -> range:
  if batch_size < 1 or batch_size % process_count:
    raise UserError(
      f'a batch of {batch_size} rows cannot be split evenly among {process_count} processes: '
      'set Trainer.batch_size to a positive multiple of the number of processes'
    )
  size = batch_size // process_count
  return range(process_index * size, (process_index + 1) * size)


def _example(batches: 'Batches | _EvaluationBatches', epoch: int, index: int) -> Mapping[str, Any]:
  row = batches.rows[index]
  # SeedSequence accepts no negative numbers, so the sign is a separate entry.
  seed = [abs(batches.seed), int(batches.seed < 0), epoch, index]
  try:
    return transformed(batches.transform, row, np.random.default_rng(seed), batches.rows)
  except UserError as error:
    raise UserError(f'row {index}: {error}') from error


def _stack(examples: Sequence[Mapping[str, Any]]) -> Batch:
  batch = {}
  for name in examples[0]:
    arrays = [np.asarray(example[name]) for example in examples]
    if len({array.shape for array in arrays}) > 1:
      shapes = collections.Counter(array.shape for array in arrays)
      counts = ', '.join(f'{count} of shape {shape}' for shape, count in shapes.items())
      raise UserError(f"rows of a batch differ in the shape of '{name}': {counts}")
    batch[name] = np.stack(arrays)
  return batch


def _pad(array: np.ndarray, size: int) -> np.ndarray:
  padding = np.zeros((size - len(array), *array.shape[1:]), array.dtype)
  return np.concatenate([array, padding])


class SourceRows(BulkExamples):
  """The examples of a split as rows, which the source identifies.

  Args:
    source: the source.
    split: name of the split.
  """

  def __init__(self, source: Source, split: str):
    self.source, self.split, self.examples = source, split, source.load(split)

  @property
  def fingerprint(self) -> str:
    """Identifies the content of all examples."""
    if is_former():
      return rows_fingerprint(self.examples)
    return fingerprint(self.source.fingerprint(), self.split)

  def __len__(self) -> int:
    return len(self.examples)

  def read(self, indices):
    return read_at(self.examples, indices)

  def names(self):
    return example_names(self.examples)

  def label_values(self):
    return label_values(self.examples)


def rows_fingerprint(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns the fingerprint of the rows, or one of the first, the middle and the last row."""
  if own := getattr(rows, 'fingerprint', None):
    return own

  def contents(row: Mapping[str, Any]) -> Iterator[object]:
    for name in sorted(row):
      array = np.asarray(row[name])
      # The bytes of an object array are memory addresses.
      content = row[name] if array.dtype.hasobject else array.tobytes()
      yield from (name, array.shape, array.dtype.str, content)

  return fingerprint(*(list(contents(rows[i])) for i in (0, len(rows) // 2, len(rows) - 1)))


def shuffled(numbers: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns epoch and row of each number of an endless stream; each epoch has its own order."""
  epoch, index = np.divmod(numbers.astype(np.int64), size)
  start = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
  return epoch, permute(index, size, _mix(start + epoch.astype(np.uint64)))


def permute(index: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
  """Maps each index with a permutation of 0 .. size-1, which its entry in `keys` selects.

  A Feistel network over the next square number is iterated until the result is below `size` (Black and Rogaway 2002,
  "Ciphers with Arbitrary Finite Domains"). It needs no table: any example of any epoch is located in constant time, and
  the order depends neither on a buffer size nor on library versions.
  """
  side = np.uint64(math.isqrt(size - 1) + 1)
  salts = np.arange(1, _ROUNDS + 1, dtype=np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
  keys = _mix(keys.astype(np.uint64) + salts)
  result, outside = index.astype(np.uint64), np.arange(len(index))
  while len(outside):
    left, right = np.divmod(result[outside], side)
    for key in keys:
      left, right = right, (left + _mix(key[outside] + right) % side) % side
    result[outside] = left * side + right
    outside = outside[result[outside] >= size]
  return result.astype(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
  """Finaliser of splitmix64 (Steele et al. 2014): each bit of x affects all bits of the result."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def seed_of(seed: int, name: str) -> int:
  """Returns the seed of a named part of the data, which does not depend on the other parts."""
  digest = hashlib.sha256(f'{seed} {name}'.encode()).digest()
  return int.from_bytes(digest[:7], 'little')
