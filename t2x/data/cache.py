"""Token cache: a split is tokenised and packed once; its rows are then read at random.

The rows are fixed-size records (a NumPy structured type) in one file, with a JSON description, in a
folder named by the fingerprint of the source, the split, the tokenizer and the plan.
"""

import collections
import contextlib
import functools
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from t2x.base.errors import UserError
from t2x.base.terminal import console
from t2x.data.encoded_split import EncodedSplit, split_into_ranges
from t2x.data.encoding_workers import encode_split, num_workers
from t2x.data.packing import add_positions
from t2x.data.plans import Item, Plan, segments_of
from t2x.data.prepared_folders import cache_folder, explain_write_errors, fingerprint, prepare
from t2x.data.sources.base import Source
from t2x.data.tokenizers.base import Tokenizer

__all__ = ['Rows', 'token_rows']

log = logging.getLogger('t2x')

# Increment when the same plan produces other rows. A run with another fingerprint is not resumed.
CONTENT = 1
# Increment when the layout of the files changes.
LAYOUT = 2
FILE = 'rows.bin'
# Statistics that are numbers of examples, with their description.
OMITTED = {
  'empty': 'empty',
  'divided': 'divided between rows',
  'dropped': 'dropped as too long',
  'cut': 'cut as too long',
}


class Rows(Sequence):
  """Prepared rows: `rows[i]` is a dict of int32 arrays. Any process can read them in any order.

  A packing plan has ids, segments and positions for each text column: `tokens`, `segments`,
  `positions`, or `source`, `source_segments`, `source_positions`, `target`, ... Rows of labelled
  examples have the columns of their plan; a column of length 1 is read as a scalar.

  The file is memory-mapped: processes share its pages, and the operating system can evict them.

  Attributes:
    folder: folder of the rows.
    info: statistics of the split: `examples`, `bytes` (of UTF-8 text), `tokens` (with eos, without
      padding), `rows`, `efficiency` (tokens over tokens and padding), numbers of `empty`, `dropped`
      and `cut` examples, `cut_tokens`, `lossy_texts` (texts with unknown tokens).
    fingerprint: identifies the source, the split, the tokenizer and the plan.
  """

  def __init__(self, folder: str | Path):
    self.folder = Path(folder)
    try:
      self.info: dict[str, Any] = json.loads((self.folder / 'info.json').read_text())
      self.fingerprint: str = self.info['fingerprint']
      self._dtype = np.dtype([(name, t, tuple(*shape)) for name, t, *shape in self.info['columns']])
      self._positions: list[str] = self.info['positions']
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise UserError(f'{self.folder} contains no prepared rows ({error}): remove it') from error

  def __reduce__(self):
    return type(self), (self.folder,)

  def __len__(self) -> int:
    return self.info['rows']

  def __getitem__(self, index):
    """Returns the row at `index`; a negative index counts from the end."""
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    i = range(len(self))[index]
    record = self._records[i]
    row = {name: _as_read(record[name]) for name in self._dtype.names or ()}
    if self._positions:
      return add_positions(row, self._positions)
    return {name: array[0] if array.shape == (1,) else array for name, array in row.items()}

  def lengths(self, column: str, start: int, stop: int) -> np.ndarray:
    """Returns the numbers of tokens without padding of a column, int64 [rows], for rows start to stop."""
    return np.count_nonzero(self._records[segments_of(column)][start:stop], axis=1)

  @functools.cached_property
  def _records(self) -> np.ndarray:
    """All rows, memory-mapped."""
    path, size = self.folder / FILE, len(self) * self._dtype.itemsize
    try:
      if path.stat().st_size != size:
        raise UserError(f'{path} has {path.stat().st_size} bytes, not {size}: remove {self.folder}')
      return np.asarray(np.memmap(path, self._dtype, 'r'))
    except OSError as error:
      raise UserError(f'{path} cannot be read ({error}): remove {self.folder}') from error


def token_rows(
  source: Source, split: str, tokenizer: Tokenizer, plan: Plan, cache: Path | None = None
) -> Rows:
  """Returns the rows of a split, prepared at first use.

  Args:
    source: source whose `load(split)` returns examples with the fields that the plan reads.
    split: name of the split.
    tokenizer: converts text to ids.
    plan: converts examples to rows.
    cache: cache folder; None: $T2X_CACHE or ~/.cache/t2x.

  Raises:
    UserError: an example lacks a field, or the cache cannot be written.
  """
  key = fingerprint(source.fingerprint(), split, tokenizer.fingerprint, plan, CONTENT)
  folder = (cache or cache_folder()) / 'rows' / f'{key}-{LAYOUT}'
  if folder.exists():
    return Rows(folder)
  workers, examples, start = num_workers(), source.load(split), time.monotonic()
  ranges = split_into_ranges(examples)
  encoded = EncodedSplit(
    folder.with_name(f'{folder.name}.ranges'), folder, examples, tokenizer, plan, ranges
  )

  def encode(counts: collections.Counter[str]) -> Iterator[Item]:
    with _progress('preparing' if len(ranges) < 2 else 'packing', len(examples)) as update:
      if len(ranges) < 2:
        yield from plan.encode(_numbered(examples, update), tokenizer, counts)
      else:
        yield from encoded.items(counts, update)

  def write(temporary: Path) -> None:
    info: dict[str, Any] = {
      'fingerprint': key,
      'source': repr(source),
      'split': split,
      'plan': repr(plan),
    }
    info |= _write(encode, tokenizer, plan, temporary)
    info |= {'examples': len(examples), 'seconds': round(time.monotonic() - start, 3)}
    (temporary / 'info.json').write_text(json.dumps(info, indent=2) + '\n')

  with explain_write_errors(folder), encoded.ignore_removal():
    if len(ranges) > 1:
      with _progress('tokenising', len(examples)) as update:
        encode_split(encoded, workers, update)
    prepare(folder, write)
  encoded.remove()
  rows = Rows(folder)
  # Also if another process has packed them.
  log.info('%s', _summary(split, rows.info))
  return rows


def _write(
  encode: Callable[[collections.Counter[str]], Iterable[Item]],
  tokenizer: Tokenizer,
  plan: Plan,
  folder: Path,
) -> dict:
  """Writes the file of rows. Returns the statistics for info.json.

  Args:
    encode: returns the items of all examples and adds to the counts while they are read.
    tokenizer: the tokenizer of the items.
    plan: packs the items.
    folder: folder of the file.
  """
  counts = collections.Counter[str](rows=0, tokens=0)
  record = np.zeros((), plan.dtype(tokenizer.vocab_size))
  with (folder / FILE).open('wb') as file:
    for row in plan.pack(encode(counts), tokenizer, counts):
      for name in plan.columns:
        values = np.asarray(row[name])
        _check_type(plan, name, values.dtype)
        # Encoded items are read as flat arrays.
        record[name] = values.reshape(record[name].shape)
      file.write(record.tobytes())
      counts['rows'] += 1
      counts['tokens'] += sum(int(np.count_nonzero(row[segments_of(n)])) for n in plan.texts)
  capacity = counts['rows'] * sum(record[name].size for name in plan.texts)
  return {
    **{name: int(count) for name, count in counts.items()},
    'efficiency': round(counts['tokens'] / max(capacity, 1), 6),
    'vocab_size': tokenizer.vocab_size,
    'columns': record.dtype.descr,
    'positions': plan.texts if plan.positions else [],
  }


def _as_read(array: np.ndarray) -> np.ndarray:
  return array.astype(np.float32 if array.dtype.kind == 'f' else np.int32)


def _check_type(plan: Plan, column: str, dtype: np.dtype) -> None:
  """Raises UserError if values of a type would be changed in a column: floats are cut off to integers."""
  stored = np.dtype(plan.columns[column].dtype or np.int32)
  if stored.kind not in 'biuf' or dtype.kind not in ('biuf' if stored.kind == 'f' else 'biu'):
    raise UserError(
      f"the column '{column}' of {type(plan).__name__} has values of type {dtype}, but stores {stored}: rows can only "
      'store integers, or floats in columns of floats'
    )


@contextlib.contextmanager
def _progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
  """Shows a progress bar if stderr is a terminal. Yields a function that sets the completed number."""
  columns = (TextColumn(description), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
  with Progress(
    *columns, console=console(), transient=True, disable=not sys.stderr.isatty()
  ) as bar:
    task = bar.add_task(description, total=total)
    yield lambda completed: bar.update(task, completed=completed)


def _numbered(examples: Sequence[Any], update: Callable[[int], None]) -> Iterator[tuple[int, Any]]:
  """Yields the examples with their numbers. Calls `update` with the number of examples."""
  # Iteration lets a source read many examples at once.
  for number, example in enumerate(itertools.islice(examples, len(examples))):
    yield number, example
    update(number + 1)


def _summary(split: str, info: Mapping[str, Any]) -> str:
  """Returns the log line about a prepared split."""
  size = f'{info["bytes"] / 1e6:.1f} MB of text, ' if 'bytes' in info else ''
  line = (
    f'prepared {split}: {info["examples"]:,} examples, {size}{info["tokens"]:,} tokens in '
    f'{info["rows"]:,} rows ({1 - info["efficiency"]:.1%} padding), {info["seconds"]:.1f} s '
    f'({info["tokens"] / max(info["seconds"], 1e-3):,.0f} tokens/s)'
  )
  omitted = [f'{info[name]:,} {reason}' for name, reason in OMITTED.items() if info.get(name)]
  return '; '.join([line, *omitted])
