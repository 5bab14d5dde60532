"""The token cache: a split, tokenised and packed once, read at random ever after.

An array_record file of rows of one size and a description beside it, in a folder named by the
fingerprint of the source, the split, the tokenizer and the plan.
"""

import collections
import functools
import itertools
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from t2x.data.folders import cache_folder, fingerprint, prepare
from t2x.data.labelled import LabelledPlan, text_of
from t2x.data.packing import Ids, Plan, Row, add_positions, segments_of
from t2x.data.tokenizers import Tokenizer
from t2x.errors import UserError
from t2x.terminal import console

__all__ = ['Rows', 'labelled_rows', 'token_rows']

log = logging.getLogger('t2x')

# Raised when the layout of the files changes.
FORMAT = 1
# Rows of up to this many bytes are held in memory: 1 microsecond a row, not 50.
MEMORY_LIMIT = 1 << 30
# Characters that are tokenised at once.
BATCH = 1 << 20


class Rows(Sequence):
  """Prepared rows: `rows[i]` is a dict of int32 arrays, at random and in any process.

  For each column ids, segments and positions: `tokens`, `segments`, `positions`, or `source`,
  `source_segments`, `source_positions`, `target`, ... Rows of labelled examples have what their plan
  says, a column of length 1 as a number.

  Attributes:
    folder: where they are kept.
    info: what is known of the split: `examples`, `bytes` (of UTF-8 text), `tokens` (eos included,
      padding not), `rows`, `efficiency` (part of the rows' places that holds tokens), `empty`,
      `dropped` and `cut` examples, `cut_tokens`.
    fingerprint: of source, split, tokenizer and plan.
  """

  def __init__(self, folder: str | Path):
    self.folder = Path(folder)
    try:
      self.info: dict[str, Any] = json.loads((self.folder / 'info.json').read_text())
      self.fingerprint: str = self.info['fingerprint']
      self._columns = [(name, length, np.dtype(t)) for name, length, t in self.info['columns']]
      self._labelled = bool(self.info.get('labelled'))
    except (OSError, ValueError, KeyError) as error:
      raise UserError(f'{self.folder} holds no prepared rows ({error}): remove it') from error
    self._size = sum(length * dtype.itemsize for _, length, dtype in self._columns)

  def __reduce__(self):
    return type(self), (self.folder,)

  def __len__(self) -> int:
    return self.info['rows']

  def __getitem__(self, index):
    """The row at `index`; negative counts from the end."""
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    i = int(index)
    if not -len(self) <= i < len(self):
      raise IndexError(f'row {i} of {len(self)}')
    record, row, start = self._record(i % len(self)), {}, 0
    for name, length, dtype in self._columns:
      array = np.frombuffer(record, dtype, count=length, offset=start)
      row[name] = array.astype(np.int32)
      start += array.nbytes
    if self._labelled:
      return {name: array if len(array) > 1 else array[0] for name, array in row.items()}
    return add_positions(row, [name for name in row if not name.endswith('segments')])

  def _record(self, index: int) -> Any:
    if self._memory is not None:
      return self._memory[index]
    return self._reader.read([index])[0]

  @functools.cached_property
  def _memory(self) -> np.ndarray | None:
    """All records [rows, bytes], where they are small enough."""
    if len(self) * self._size > MEMORY_LIMIT:
      return None
    joined = b''.join(self._reader.read_all())
    return np.frombuffer(joined, np.uint8).reshape(len(self), self._size)

  @functools.cached_property
  def _reader(self) -> Any:
    from array_record.python import array_record_module

    path = self.folder / 'rows.array_record'
    # Without read-ahead, which random access has no use for.
    options = 'readahead_buffer_size:0'
    try:
      reader = array_record_module.ArrayRecordReader(str(path), options)
    except (RuntimeError, OSError, ValueError) as error:
      raise UserError(f'{path} cannot be read ({error}): remove {self.folder}') from error
    if reader.num_records() != len(self):
      raise UserError(
        f'{path} has {reader.num_records()} rows, not {len(self)}: remove {self.folder}'
      )
    return reader


def token_rows(
  source: Any, split: str, tokenizer: Tokenizer, plan: Plan, cache: Path | None = None
) -> Rows:
  """The rows of a split, prepared at first use.

  Args:
    source: `load(split)` gives its examples, dicts with the plan's text fields.
    split: a split of the source.
    tokenizer: makes ids of text.
    plan: makes rows of ids.
    cache: the cache folder (default: $T2X_CACHE or ~/.cache/t2x).

  Raises:
    UserError: an example lacks a text field, or the cache cannot be written.
  """
  key = fingerprint(source.fingerprint(), split, tokenizer.fingerprint, plan, FORMAT)
  folder = (cache or cache_folder()) / 'rows' / key

  def write(temporary: Path) -> None:
    known = {'fingerprint': key, 'source': repr(source), 'split': split, 'plan': repr(plan)}
    info = known | _write_rows(source.load(split), tokenizer, plan, temporary)
    (temporary / 'info.json').write_text(json.dumps(info, indent=2) + '\n')
    log.info('%s', _told(split, info))

  prepare(folder, write)
  return Rows(folder)


def labelled_rows(
  source: Any, split: str, tokenizer: Tokenizer, plan: LabelledPlan, cache: Path | None = None
) -> Rows:
  """The rows of a split's labelled examples, prepared at first use; arguments as of `token_rows`."""
  key = fingerprint(source.fingerprint(), split, tokenizer.fingerprint, plan, FORMAT)
  folder = (cache or cache_folder()) / 'rows' / key

  def write(temporary: Path) -> None:
    counts = collections.Counter[str]()
    examples = source.load(split)
    small = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    columns = [(n, c.length, np.dtype(c.dtype or small)) for n, c in plan.columns.items()]
    rows = plan.rows(_told_of(examples), tokenizer, counts)
    known = {'fingerprint': key, 'source': repr(source), 'split': split, 'plan': repr(plan)}
    info = known | _write(rows, columns, ['tokens'], temporary, counts)
    info |= {'examples': len(examples), 'labelled': True}
    (temporary / 'info.json').write_text(json.dumps(info, indent=2) + '\n')
    log.info('%s', _told(split, info))

  prepare(folder, write)
  return Rows(folder)


def _write_rows(
  examples: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, plan: Plan, folder: Path
) -> dict[str, Any]:
  """Writes rows.array_record; gives what info.json says of it."""
  counts = collections.Counter[str](empty=0, dropped=0, cut=0, cut_tokens=0, bytes=0)
  small = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
  columns = []
  for name, length in plan.columns.items():
    segment = np.uint16 if length < 1 << 16 else np.int32
    columns += [(name, length, np.dtype(small)), (segments_of(name), length, np.dtype(segment))]
  ids = _tokenised(_told_of(examples), tokenizer, plan, counts)
  rows = plan.pack(ids, tokenizer, counts)
  info = _write(rows, columns, list(plan.columns), folder, counts)
  return info | {'examples': len(examples), 'vocab_size': tokenizer.vocab_size}


def _write(
  rows: Iterable[Row],
  columns: Sequence[tuple[str, int, np.dtype]],
  texts: Sequence[str],
  folder: Path,
  counts: collections.Counter[str],
) -> dict[str, Any]:
  """Writes the rows' columns one after the other; gives what is known of those of `texts`."""
  from array_record.python import array_record_module

  start = time.monotonic()
  # Groups of one: a row is read without its neighbours.
  writer = array_record_module.ArrayRecordWriter(str(folder / 'rows.array_record'), 'group_size:1')
  try:
    for row in rows:
      counts['rows'] += 1
      counts['tokens'] += sum(int(np.count_nonzero(row[segments_of(name)])) for name in texts)
      writer.write(b''.join(_bytes(row[name], size, dtype) for name, size, dtype in columns))
  finally:
    writer.close()
  places = counts['rows'] * sum(length for name, length, _ in columns if name in texts)
  return {
    'rows': 0,
    'tokens': 0,
    **counts,
    'efficiency': round(counts['tokens'] / max(places, 1), 6),
    'seconds': round(time.monotonic() - start, 3),
    'columns': [(name, length, dtype.str) for name, length, dtype in columns],
  }


def _bytes(values: Any, length: int, dtype: np.dtype) -> bytes:
  array = np.atleast_1d(values).astype(dtype)
  assert array.shape == (length,)
  return array.tobytes()


def _tokenised(
  examples: Iterable[Mapping[str, Any]],
  tokenizer: Tokenizer,
  plan: Plan,
  counts: collections.Counter[str],
) -> Iterator[Ids]:
  """The ids of each example's fields; many examples are encoded at once."""
  waiting: dict[str, list[str]] = {field: [] for field in plan.fields}
  size = 0

  def encoded() -> Iterator[Ids]:
    sides = [tokenizer.target if field == 'target' else tokenizer for field in waiting]
    columns = [
      side.encode_batch(texts) for side, texts in zip(sides, waiting.values(), strict=True)
    ]
    for ids in zip(*columns, strict=True):
      yield {field: np.array(one, np.int32) for field, one in zip(waiting, ids, strict=True)}

  for number, example in enumerate(examples):
    for field in plan.fields:
      text = text_of(example, field, number)
      counts['bytes'] += len(text.encode())
      size += len(text)
      waiting[field].append(text)
    if size >= BATCH:
      yield from encoded()
      waiting, size = {field: [] for field in plan.fields}, 0
  yield from encoded()


def _told_of(examples: Sequence[Any]) -> Iterator[Any]:
  """The examples, with a progress bar on stderr where that is a terminal."""
  columns = (TextColumn('preparing'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
  with Progress(
    *columns, console=console(), transient=True, disable=not sys.stderr.isatty()
  ) as bar:
    task = bar.add_task('preparing', total=len(examples))
    # Sources may read many at once when they are iterated over.
    for example in itertools.islice(examples, len(examples)):
      yield example
      bar.advance(task)


def _told(split: str, info: Mapping[str, Any]) -> str:
  """One line on what was prepared."""
  size = f'{info["bytes"] / 1e6:.1f} MB of text, ' if 'bytes' in info else ''
  line = (
    f'prepared {split}: {info["examples"]:,} examples, {size}{info["tokens"]:,} tokens in '
    f'{info["rows"]:,} rows ({info["efficiency"]:.1%} full), {info["seconds"]:.1f} s'
  )
  told = {'empty': 'empty', 'dropped': 'dropped as too long', 'cut': 'cut as too long'}
  known = [f'{info[name]:,} {what}' for name, what in told.items() if info.get(name)]
  return '; '.join([line, *known])
