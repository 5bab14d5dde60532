"""Encoding of a split by several processes, on one or several hosts that share the cache folder.

The examples are divided into ranges that depend only on the data. A process encodes a range while it
holds the range's file lock, and writes it atomically to a work folder. The range of a killed process
is encoded by another process, and an interrupted preparation resumes with the remaining ranges. The
ranges are then read in order, so that the rows do not depend on the number of processes.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.files import try_lock, write_atomically
from t2x.data.plans import Item, Plan, by_size
from t2x.data.sources.base import in_range
from t2x.data.tokenizers.base import Tokenizer

# Characters of text in a range. A split with fewer is encoded by one process.
RANGE = 8 << 20
# Number of examples whose characters are counted.
SAMPLE = 16
# Maximum number of ranges, each of which has two files and a lock.
MAX_RANGES = 4096
# Values to write and read at once.
BLOCK = 1 << 20
# Seconds after which the work folder of an interrupted preparation is removed.
ABANDONED = 14 * 24 * 3600


def split_into_ranges(examples: Sequence[Mapping[str, Any]]) -> list[range]:
  """Returns consecutive ranges of equally many examples, with about `RANGE` characters each.

  The number of characters is estimated from evenly spaced examples.
  """
  total = len(examples)
  sizes = [_num_characters(examples[i * total // SAMPLE]) for i in range(SAMPLE if total else 0)]
  count = max(RANGE * SAMPLE // max(sum(sizes), 1), -(-total // MAX_RANGES), 1)
  return [range(start, min(start + count, total)) for start in range(0, total, count)]


def _num_characters(value: object) -> int:
  if isinstance(value, str | bytes):
    return len(value)
  if isinstance(value, Mapping):
    return sum(map(_num_characters, value.values()))
  return sum(map(_num_characters, value)) if isinstance(value, list | tuple) else 0


@dataclasses.dataclass(frozen=True)
class EncodedSplit:
  """The encoded examples of a split in a work folder. Picklable if its fields are.

  Attributes:
    folder: the work folder.
    result: folder of the rows; no range is encoded after it exists.
    examples: the examples of the split.
    tokenizer: converts text to ids.
    plan: encodes the examples.
    ranges: ranges of the examples.
  """

  folder: Path
  result: Path
  examples: Sequence[Mapping[str, Any]]
  tokenizer: Tokenizer
  plan: Plan
  ranges: list[range]

  def create(self) -> None:
    """Creates the work folder, and removes abandoned work folders beside it."""
    for path in self.folder.parent.glob(f'*{self.folder.suffix}'):
      with contextlib.suppress(OSError):  # Another process removes it too.
        if path.stat().st_mtime < time.time() - ABANDONED:
          shutil.rmtree(path, ignore_errors=True)
    self.folder.mkdir(parents=True, exist_ok=True)

  def remove(self) -> None:
    """Removes the work folder."""
    shutil.rmtree(self.folder, ignore_errors=True)

  def encode_free_ranges(self) -> Iterator[range]:
    """Encodes the ranges that no process has encoded or is encoding; yields each after it is encoded."""
    # Processes that start at different ranges rarely wait for the same lock. Without locks, they
    # rarely encode the same range.
    first = random.randrange(len(self.ranges))
    with self.ignore_removal():
      for part in [*self.ranges[first:], *self.ranges[:first]]:
        if self._is_needed(part):
          with try_lock(self._path(part, 'lock')) as locked:
            if locked and self._is_needed(part):
              self._encode(part)
              yield part

  def num_encoded(self) -> int:
    """Returns the number of examples in encoded ranges; all of them if the rows exist."""
    if not self.result.exists():
      with self.ignore_removal():
        names = {path.name for path in self.folder.iterdir()}
        return sum(len(part) for part in self.ranges if self._path(part, 'items').name in names)
    return len(self.examples)

  def is_complete(self) -> bool:
    """Returns whether all ranges are encoded, or the rows exist."""
    return self.num_encoded() == len(self.examples)

  def items(
    self, counts: collections.Counter[str], update: Callable[[int], object]
  ) -> Iterator[Item]:
    """Yields the items of all examples in order.

    Args:
      counts: the counts of each range are added to it.
      update: called with the number of examples whose items were read.
    """
    for part in self.ranges:
      try:
        info = json.loads(self._path(part, 'json').read_bytes())
        counts.update(info['counts'])
        with self._path(part, 'items').open('rb') as file:
          yield from read_items(file, info['types'])
        update(part.stop)
      except (ValueError, EOFError, KeyError) as error:
        raise UserError(f'{self._path(part, "items")} is damaged: remove {self.folder}') from error

  @contextlib.contextmanager
  def ignore_removal(self) -> Iterator[None]:
    """Ignores that the work folder does not exist if another process has written the rows."""
    try:
      yield
    except FileNotFoundError:
      if not self.result.exists():
        raise

  def _path(self, part: range, suffix: str) -> Path:
    return self.folder / f'{part.start}-{part.stop}.{suffix}'

  def _is_needed(self, part: range) -> bool:
    return not (self._path(part, 'items').exists() or self.result.exists())

  def _encode(self, part: range) -> None:
    counts = collections.Counter[str]()
    numbered = zip(part, in_range(self.examples, part), strict=True)
    temporary = self._path(part, f'{uuid.uuid4().hex[:8]}.tmp')
    try:
      with temporary.open('wb') as file:
        types = write_items(file, self.plan.encode(numbered, self.tokenizer, counts))
        file.flush()
        os.fsync(file.fileno())
      info = json.dumps({'types': types, 'counts': {name: int(n) for name, n in counts.items()}})
      write_atomically(self._path(part, 'json'), info.encode())
      temporary.rename(self._path(part, 'items'))
    except BaseException:
      temporary.unlink(missing_ok=True)
      raise


def write_items(file: IO[bytes], items: Iterable[Item]) -> dict[str, str]:
  """Writes items in blocks: an array of lengths [items, names], then all values, floats as their bits.

  Returns name -> 'int32' or 'float32'.
  """
  types: dict[str, str] = {}
  for block in by_size(items, lambda item: sum(map(np.size, item.values())), BLOCK):
    types = types or {name: _read_type(np.asarray(value).dtype) for name, value in block[0].items()}
    arrays = [
      np.ravel(item[name]).astype(np.float32).view(np.int32)
      if read == 'float32'
      else np.ravel(item[name])
      for item in block
      for name, read in types.items()
    ]
    _write_block(file, arrays, len(types))
  return types


def _read_type(dtype: np.dtype) -> str:
  return 'float32' if dtype.kind == 'f' else 'int32'


def _write_block(file: IO[bytes], arrays: list[np.ndarray], num_names: int) -> None:
  lengths = np.array([len(array) for array in arrays], np.int64).reshape(-1, num_names)
  values = np.concatenate(arrays)
  if not np.can_cast(values.dtype, np.int64):
    raise TypeError(f'the items of a plan must be integers or floats, not {values.dtype}')
  for array in (lengths, values):
    np.save(file, array.astype(_smallest_type(array)))


def _smallest_type(array: np.ndarray) -> np.dtype:
  """Returns the smallest integer type that holds all values."""
  if not array.size:
    return np.dtype(np.uint8)
  return np.result_type(np.min_scalar_type(array.min()), np.min_scalar_type(array.max()))


def read_items(file: IO[bytes], types: Mapping[str, str]) -> Iterator[Item]:
  """Yields the items of `write_items`, as flat arrays of these types; one block is in memory at a time."""
  size = os.fstat(file.fileno()).st_size
  while file.tell() < size:
    lengths = np.load(file).ravel()
    values = np.load(file).astype(np.int32)
    stops = np.cumsum(lengths, dtype=np.int64).tolist()
    arrays = [values[start:stop] for start, stop in itertools.pairwise([0, *stops])]
    for i in range(0, len(arrays), len(types)):
      parts = zip(types.items(), arrays[i : i + len(types)], strict=True)
      yield {name: array.view(read) for (name, read), array in parts}
