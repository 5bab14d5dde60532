"""The token cache: a split, tokenised and packed once, read at random ever after.

An array_record file of rows of one size and a description beside it, in a folder named by the
fingerprint of the source, the split, the tokenizer and the plan.
"""

import collections
import functools
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from t2x.data.folders import cache_folder, fingerprint, prepare
from t2x.data.packing import Ids, Plan, Row, add_positions, segments_of
from t2x.data.tokenizers import Tokenizer
from t2x.errors import UserError

__all__ = ['Rows', 'token_rows']

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
  `source_segments`, `source_positions`, `target`, ...

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


def _write_rows(
  examples: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, plan: Plan, folder: Path
) -> dict[str, Any]:
  """Writes rows.array_record; gives what info.json says of it."""
  from array_record.python import array_record_module

  start = time.monotonic()
  counts = collections.Counter[str](empty=0, dropped=0, cut=0, cut_tokens=0, bytes=0)
  small = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
  columns = []
  for name, length in plan.columns.items():
    segment = np.uint16 if length < 1 << 16 else np.int32
    columns += [(name, length, np.dtype(small)), (segments_of(name), length, np.dtype(segment))]
  # Groups of one: a row is read without its neighbours.
  writer = array_record_module.ArrayRecordWriter(str(folder / 'rows.array_record'), 'group_size:1')
  try:
    ids = _tokenised(_told_of(examples), tokenizer, plan, counts)
    for row in plan.pack(ids, tokenizer, counts):
      counts['rows'] += 1
      counts['tokens'] += _num_tokens(row, plan)
      writer.write(b''.join(row[name].astype(dtype).tobytes() for name, _, dtype in columns))
  finally:
    writer.close()
  places = counts['rows'] * sum(plan.columns.values())
  return {
    'examples': len(examples),
    'rows': 0,
    'tokens': 0,
    **counts,
    'efficiency': round(counts['tokens'] / max(places, 1), 6),
    'seconds': round(time.monotonic() - start, 3),
    'vocab_size': tokenizer.vocab_size,
    'columns': [(name, length, dtype.str) for name, length, dtype in columns],
  }


def _num_tokens(row: Row, plan: Plan) -> int:
  return sum(int(np.count_nonzero(row[segments_of(name)])) for name in plan.columns)


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
      text = _text(example, field, number)
      counts['bytes'] += len(text.encode())
      size += len(text)
      waiting[field].append(text)
    if size >= BATCH:
      yield from encoded()
      waiting, size = {field: [] for field in plan.fields}, 0
  yield from encoded()


def _text(example: Mapping[str, Any], field: str, number: int) -> str:
  text = example.get(field)
  if isinstance(text, bytes):
    text = text.decode(errors='replace')
  if not isinstance(text, str):
    raise UserError(f"example {number} has no text '{field}': its fields are {sorted(example)}")
  return text


def _told_of(examples: Sequence[Any]) -> Iterator[Any]:
  """The examples, with a progress bar on stderr where that is a terminal."""
  columns = (TextColumn('preparing'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
  console = Console(stderr=True)
  with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
    task = bar.add_task('preparing', total=len(examples))
    for i in range(len(examples)):
      yield examples[i]
      bar.advance(task)


def _told(split: str, info: Mapping[str, Any]) -> str:
  """One line on what was prepared."""
  line = (
    f'prepared {split}: {info["examples"]:,} examples, {info["bytes"] / 1e6:.1f} MB of text, '
    f'{info["tokens"]:,} tokens in {info["rows"]:,} rows ({info["efficiency"]:.1%} full), '
    f'{info["seconds"]:.1f} s'
  )
  told = {'empty': 'empty', 'dropped': 'dropped as too long', 'cut': 'cut as too long'}
  return '; '.join([line, *(f'{info[name]:,} {what}' for name, what in told.items() if info[name])])
