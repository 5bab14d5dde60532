"""Sources of local files: text, JSON lines and tab-separated values. They need no preparation."""

import abc
import array
import codecs
import contextlib
import dataclasses
import glob
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example, Examples, Source
from t2x.errors import UserError
from t2x.ranges import NonEmpty, Text


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource(Source):
  """Examples in files, by split.

  Attributes:
    train: path or glob.
    validation: path or glob; None: no such split.
    test: path or glob; None: no such split.
  """

  train: Text
  validation: Text | None = None
  test: Text | None = None

  def splits(self) -> tuple[str, ...]:
    """Returns the splits that are set."""
    return tuple(name for name in ('train', 'validation', 'test') if getattr(self, name))

  def load(self, split: str) -> 'FileExamples':
    """Returns the examples of a split. Checks them now; reads each from its file when it is used.

    Raises:
      UserError: a file cannot be read or has no examples, or a line is not an example.
    """
    examples = FileExamples(self)
    for path in self._paths(split):
      if not examples.add(path):
        raise UserError(f'{path} is empty: remove it from {type(self).__name__}.{split}')
    return examples

  def fingerprint(self) -> str:
    """Identifies the settings and the names and content of the files, but not their folder."""
    digest = hashlib.sha256()
    for split in self.splits():
      for path in self._paths(split):
        digest.update(f'{split} {path.name}\0'.encode())
        with _open_file(path) as file:
          digest.update(hashlib.file_digest(file, 'sha256').digest())
    return fingerprint(type(self).__name__, self._settings(), digest.hexdigest())

  @property
  def lines(self) -> bool:
    """True if each line is an example, False if each file is an example."""
    return True

  @abc.abstractmethod
  def example(self, text: str, path: Path, number: int) -> Example:
    """Returns the example in a text, which is line `number` of a file.

    Raises:
      UserError: the text is not an example.
    """

  @abc.abstractmethod
  def _settings(self) -> object:
    """Returns the settings that change how a file is read."""

  def _paths(self, split: str) -> list[Path]:
    setting = f'{type(self).__name__}.{split}'
    pattern = getattr(self, split) if split in self.splits() else None
    if pattern is None:
      raise UserError(f"{setting} is not set: there is no split '{split}'")
    pattern = str(Path(pattern).expanduser())
    # An existing path that contains brackets is not a pattern.
    matches = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
    paths = [path for path in map(Path, matches) if path.is_file()]
    if not paths and Path(pattern).is_dir():
      raise UserError(
        f"{setting} = '{pattern}' is a folder: set a pattern such as '{pattern}/**/*.txt'"
      )
    if not paths:
      raise UserError(f"{setting} = '{pattern}' matches no file (current folder: {Path.cwd()})")
    return paths


class FileExamples(Examples):
  """Examples in files; only their byte ranges are in memory."""

  def __init__(self, source: FileSource):
    self.source = source
    self.paths: list[Path] = []
    # For each example: index of its file, first byte, byte after the last, line number.
    self.places = array.array('q')

  def add(self, path: Path) -> int:
    """Adds and checks the examples of a file. Returns their number."""
    before = len(self)
    self.paths.append(path)
    for start, text, number in self._texts(path):
      if text.strip():
        self.source.example(text, path, number)
        size = len(text.encode())
        self.places.extend((len(self.paths) - 1, start, start + size, number))
    return len(self) - before

  def _texts(self, path: Path) -> Iterator[tuple[int, str, int]]:
    """Yields first byte, text and line number of each line, or of the file.

    Only \\n and \\r\\n end a line: a JSON string may contain other separators such as U+2028.
    """
    with _open_file(path) as file:
      start = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
      file.seek(start)
      for number, part in enumerate(file if self.source.lines else [file.read()], 1):
        text = _decode(part, path, start)
        if self.source.lines:
          text = text.removesuffix('\n').removesuffix('\r')
        yield start, text, number
        start += len(part)

  def __len__(self) -> int:
    return len(self.places) // 4

  def __getitem__(self, index):
    """Returns the example at `index`; a negative index counts from the end."""
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    i = int(index)
    if not -len(self) <= i < len(self):
      raise IndexError(f'example {i} is out of range: there are {len(self)} examples')
    with _open_file(self.paths[self.places[i % len(self) * 4]]) as file:
      return self._read(file, i % len(self))

  def __iter__(self):
    i = 0
    for number, path in enumerate(self.paths):
      with _open_file(path) as file:
        while i < len(self) and self.places[4 * i] == number:
          yield self._read(file, i)
          i += 1

  def _read(self, file: io.BufferedReader, i: int) -> Example:
    file_index, start, stop, number = self.places[4 * i : 4 * i + 4]
    file.seek(start)
    text = _decode(file.read(stop - start), self.paths[file_index], start)
    return self.source.example(text, self.paths[file_index], number)

  def label_values(self):
    """Returns None: this would require reading all examples."""


@contextlib.contextmanager
def _open_file(path: Path) -> Iterator[io.BufferedReader]:
  try:
    with path.open('rb') as file:
      yield file
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error


def _decode(part: bytes, path: Path, start: int) -> str:
  """Decodes a part of a file; `start` is the offset of its first byte."""
  try:
    return part.decode()
  except UnicodeDecodeError as error:
    byte = start + error.start
    raise UserError(f'{path} is not UTF-8 text (byte {byte}): convert it to UTF-8') from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles(FileSource):
  """Plain text in UTF-8, with `text` and `name` of each file or of each line.

  Attributes:
    per_line: makes each line that is not blank an example.
  """

  per_line: bool = False

  def _settings(self) -> object:
    return self.per_line

  @property
  def lines(self):
    """Equals `per_line`."""
    return self.per_line

  def example(self, text, path, number):
    """Returns the unchanged text and the name of its file."""
    return {'text': text, 'name': path.name}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines(FileSource):
  """One JSON object per line.

  Attributes:
    fields: field of the example -> field of the object ({'source': 'en', 'target': 'de'}); empty:
      the objects have `text`, or `source` and `target`, `words` and `labels` (lists), or `question`
      and `context`.
  """

  fields: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

  def _settings(self) -> object:
    return sorted(self.fields.items())

  def example(self, text, path, number):
    """Returns the object of a line, with its fields renamed."""
    where = f'{path}:{number}'
    try:
      record = json.loads(text)
      if '\\u' in text:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
      raise UserError(f'{where}: unpaired surrogate: text must be valid Unicode') from error
    except (ValueError, RecursionError) as error:
      raise UserError(f'{where}: not JSON ({error}): write one object per line') from error
    if not isinstance(record, dict):
      raise UserError(f'{where}: not a JSON object: write {{"text": "..."}}')
    if not self.fields:
      required = next((names for names in KINDS if names[0] in record), ('text',))
      _require(record, {name: name for name in required}, where)
      return record
    _require(record, self.fields, where)
    return {ours: record[theirs] for ours, theirs in self.fields.items()}


# Sets of fields that an object can have, identified by their first field.
KINDS = (('source', 'target'), ('question', 'context'), ('words', 'labels'), ('text',))
# Fields that are not text; tasks check them.
NO_TEXT = ('words', 'labels', 'label', 'answers', 'starts')


def _require(record: dict[str, Any], fields: Mapping[str, str], where: str) -> None:
  for ours, name in fields.items():
    if name not in record or not (ours in NO_TEXT or isinstance(record[name], str)):
      problem = f'it has {", ".join(map(repr, record))}' if name not in record else 'it is not text'
      kind = 'a value' if ours in NO_TEXT else 'text'
      raise UserError(
        f"{where}: needs {kind} in the field '{name}', but {problem}; "
        'JsonLines.fields renames fields'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TSV(FileSource):
  """Tab-separated values without a header.

  Attributes:
    columns: names of the columns.
  """

  columns: Annotated[Sequence[Text], NonEmpty] = ('source', 'target')

  def __post_init__(self):
    # A tuple, so that equal settings compare and hash equal.
    object.__setattr__(self, 'columns', tuple(self.columns))

  def _settings(self) -> object:
    return self.columns

  def example(self, text, path, number):
    """Returns the values of a line by column."""
    values = text.split('\t')
    if len(values) != len(self.columns):
      raise UserError(
        f'{path}:{number}: {len(values)} columns, but TSV.columns names '
        f'{len(self.columns)} ({", ".join(self.columns)}): correct the line or TSV.columns'
      )
    return dict(zip(self.columns, values, strict=True))
