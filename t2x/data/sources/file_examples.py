"""Examples in text files, with an index of their first bytes in the cache."""

import abc
import bisect
import dataclasses
import functools
import io
import itertools
import json
import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t2x.base.errors import UserError
from t2x.base.external_files import csv_rows
from t2x.data.prepared_folders import cache_folder, fingerprint, prepare
from t2x.data.sources.base import BulkExamples, Example, with_progress
from t2x.data.sources.file_source import DataFile, FileSource, decompress, identity, open_file

BLOCK = 1 << 20
BOM = b'\xef\xbb\xbf'
# Increment when the layout or the content of the index changes.
INDEX = 1
# Bytes of white space, and first bytes of the UTF-8 encodings of other white space.
MAYBE_SPACE = np.zeros(256, bool)
MAYBE_SPACE[[*range(9, 14), *range(28, 33), 0xC2, 0xE1, 0xE2, 0xE3]] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSource(FileSource):
  """Examples in UTF-8 text files, which may be compressed (.gz, .zst)."""

  def load(self, split: str) -> 'FileExamples':
    """Returns the examples of a split, each read and checked when it is used; checks the first now.

    The first call for files finds the first byte of each example and writes it to the cache.

    Raises:
      UserError: a file cannot be read or has no examples, or the first line is not an example.
    """
    paths = self.paths(split)
    files = [decompress(path) for path in paths]
    name = fingerprint(self._layout(), [identity(file.data) for file in files], INDEX)
    folder = (cache_folder() / 'index' / name).absolute()
    prepare(folder, lambda temporary: _write_index(self, split, files, temporary))
    examples = FileExamples(self, files, folder)
    examples[0]
    return examples

  @abc.abstractmethod
  def starts(self, file: io.BufferedReader, path: Path) -> Iterator[np.ndarray]:
    """Yields the offsets of the first bytes of examples, from an open file after its BOM."""

  @abc.abstractmethod
  def parser(self, file: DataFile) -> Callable[[str], Example]:
    """Returns the function of a text, from the first byte of an example to the next example.

    The function raises a UserError without the location if the text is not an example.
    """

  @property
  def end(self) -> bytes:
    """The byte before each example of a file except the first."""
    return b'\n'

  def _layout(self) -> object:
    """Returns the settings that change where examples start."""
    return type(self).starts.__qualname__


class FileExamples(BulkExamples):
  """Examples in files. Their first bytes are memory-mapped, so that any process opens them fast."""

  def __init__(self, source: TextSource, files: Sequence[DataFile], folder: Path):
    """
    Args:
      source: parses the text of an example.
      files: files of the split.
      folder: index of the files.
    """
    self.source, self.files, self.folder = source, files, folder

  def __reduce__(self):
    return type(self), (self.source, self.files, self.folder)

  def __len__(self) -> int:
    return self._index.ends[-1]

  def read(self, indices):
    """Yields examples; each file is opened once for consecutive examples."""
    ends = self._index.ends
    for number, group in itertools.groupby(indices, lambda i: bisect.bisect_right(ends, i)):
      parse = self._parser(number)
      with open_file(self.files[number].data) as file:
        for i in group:
          yield self._example(file, number, i, parse)

  def _example(
    self, file: io.BufferedReader, number: int, i: int, parse: Callable[[str], Example]
  ) -> Example:
    starts, ends, sizes = self._index
    start = int(starts[i])
    stop = sizes[number] if i + 1 == ends[number] else int(starts[i + 1])
    # Of all examples but the first, also the byte before it, to detect changed files.
    before = int(i > (ends[number - 1] if number else 0))
    file.seek(start - before)
    part = file.read(stop - start + before)
    path = self.files[number].path
    if len(part) != stop - start + before or part[:before] not in (b'', self.source.end):
      raise UserError(f'{path} was changed while it was read: run the command again')
    text = decode(part[before:], path, start)
    try:
      return parse(text)
    except UserError as error:
      raise UserError(f'{path}:{_line_number(file, start)}: {error}') from error

  def _parser(self, number: int) -> Callable[[str], Example]:
    if number not in self._parsers:
      self._parsers[number] = self.source.parser(self.files[number])
    return self._parsers[number]

  @functools.cached_property
  def _parsers(self) -> dict[int, Callable[[str], Example]]:
    return {}

  @functools.cached_property
  def _index(self) -> 'Index':
    try:
      files = json.loads((self.folder / 'files.json').read_bytes())
      starts = np.asarray(np.memmap(self.folder / 'starts.bin', np.uint64, 'r'))
      if len(starts) != files['ends'][-1]:
        raise ValueError(f'{len(starts)} of {files["ends"][-1]} examples')
      return Index(starts, files['ends'], files['sizes'])
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise UserError(f'the index {self.folder} is damaged ({error}): remove it') from error


class Index(NamedTuple):
  """The first bytes of all examples; of each file, the number of examples up to its end, and its size."""

  starts: np.ndarray
  ends: list[int]
  sizes: list[int]


def _write_index(source: TextSource, split: str, files: Sequence[DataFile], folder: Path) -> None:
  """Writes the first byte of each example, and the number of examples and the size of each file."""
  ends, sizes, count = [], [], 0
  with (folder / 'starts.bin').open('wb') as index:
    for path, data in with_progress(files, 'indexing files'):
      before = count
      with open_file(data) as file:
        file.seek(len(BOM) if file.read(len(BOM)) == BOM else 0)
        for starts in source.starts(file, path):
          index.write(starts.astype(np.uint64).tobytes())
          count += len(starts)
        sizes.append(file.seek(0, io.SEEK_END))
      ends.append(count)
      if count == before:
        raise UserError(f'{path} is empty: remove it from {type(source).__name__}.{split}')
  (folder / 'files.json').write_text(json.dumps({'ends': ends, 'sizes': sizes}))


def line_starts(file: io.BufferedReader) -> Iterator[np.ndarray]:
  """Yields the first bytes of the lines that are not blank.

  Only \\n and \\r\\n end a line: a JSON string may contain other separators such as U+2028.
  """
  offset, rest = file.tell(), b''
  # Reads at least as much as is left over, so that long lines take linear time.
  while block := file.read(max(BLOCK, len(rest))):
    data = rest + block
    complete = data.rfind(b'\n') + 1
    if complete:
      yield offset + _line_starts(data[:complete])
    offset, rest = offset + complete, data[complete:]
  if rest:
    yield offset + _line_starts(rest)


def _line_starts(data: bytes) -> np.ndarray:
  """Returns the first bytes of the lines of `data` that are not blank."""
  array = np.frombuffer(data, np.uint8)
  starts = np.concatenate([[0], np.flatnonzero(array == ord('\n')) + 1])
  if starts[-1] == len(data):
    starts = starts[:-1]
  maybe_blank = np.flatnonzero(MAYBE_SPACE[array[starts]])
  ends = np.append(starts[1:], len(data))
  blank = [i for i in maybe_blank.tolist() if is_blank(data[starts[i] : ends[i]])]
  return np.delete(starts, blank)


def document_starts(file: io.BufferedReader) -> Iterator[np.ndarray]:
  """Yields the first byte of a file that is not blank."""
  start = file.tell()
  while block := file.read(BLOCK):
    # White space that is cut at the end of a block is not blank, which needs more than a block of it.
    if not is_blank(block):
      yield np.array([start])
      return


def separated_starts(file: io.BufferedReader, separator: bytes) -> Iterator[np.ndarray]:
  """Yields the first bytes of the texts between separators that are not blank."""
  start, starts = file.tell(), list[int]()
  size = file.seek(0, io.SEEK_END)
  if not size:
    return
  with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
    while start < size:
      stop = data.find(separator, start)
      stop = size if stop < 0 else stop
      blocks = (data[i : min(i + BLOCK, stop)] for i in range(start, stop, BLOCK))
      if not all(map(is_blank, blocks)):
        starts.append(start)
      start = stop + len(separator)
  yield np.array(starts, np.uint64)


def is_blank(data: bytes) -> bool:
  """Returns whether UTF-8 text is white space only."""
  return not data.strip() or not data.decode(errors='replace').strip()


def record_starts(file: io.BufferedReader, path: Path, delimiter: str) -> Iterator[np.ndarray]:
  """Yields the first bytes of the records of a CSV file, without its header and empty lines."""
  offset, starts, header = file.tell(), list[int](), True

  def lines() -> Iterator[str]:
    nonlocal offset
    for part in file:
      text = decode(part, path, offset)
      offset += len(part)
      yield text

  start = offset
  records = csv_rows(lines(), delimiter, lambda: f'{path}:{_line_number(file, start)}: ')
  while True:
    start = offset
    record = next(records, None)
    if record and not header:
      starts.append(start)
    header = header and not record
    if record is None or len(starts) == 1 << 16:
      yield np.array(starts, np.uint64)
      starts = []
    if record is None:
      return


def decode(part: bytes, path: Path, start: int) -> str:
  """Decodes a part of a file; `start` is the offset of its first byte."""
  try:
    return part.decode()
  except UnicodeDecodeError as error:
    byte = start + error.start
    raise UserError(f'{path} is not UTF-8 text (byte {byte}): convert it to UTF-8') from error


def _line_number(file: io.BufferedReader, offset: int) -> int:
  """Returns the number of the line that begins at a byte."""
  file.seek(0)
  number = 1
  while offset > 0 and (block := file.read(min(BLOCK, offset))):
    number += block.count(b'\n')
    offset -= len(block)
  return number
