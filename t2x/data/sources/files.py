"""Your own files: text, JSON lines, tab-separated values. No registry, no preparation."""

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
  """Files by split.

  Attributes:
    train: a path or glob.
    validation: a path or glob; None: no such split.
    test: a path or glob; None: no such split.
  """

  train: Text
  validation: Text | None = None
  test: Text | None = None

  def splits(self) -> tuple[str, ...]:
    """Those of train, validation and test that are set."""
    return tuple(name for name in ('train', 'validation', 'test') if getattr(self, name))

  def load(self, split: str) -> 'FileExamples':
    """The examples of a split. All are looked at once; each is read from its file when it is used.

    Raises:
      UserError: a file that cannot be read or has no example, or a line that is none.
    """
    examples = FileExamples(self)
    for path in self._paths(split):
      if not examples.add(path):
        raise UserError(f'{path} is empty: remove it from {type(self).__name__}.{split}')
    return examples

  def fingerprint(self) -> str:
    """Of the settings and of the names and every byte of the files, wherever they are."""
    digest = hashlib.sha256()
    for split in self.splits():
      for path in self._paths(split):
        digest.update(f'{split} {path.name}\0'.encode())
        with _opened(path) as file:
          digest.update(hashlib.file_digest(file, 'sha256').digest())
    return fingerprint(type(self).__name__, self._settings(), digest.hexdigest())

  @property
  def lines(self) -> bool:
    """Whether each line is an example; else each file is one."""
    return True

  @abc.abstractmethod
  def example(self, text: str, path: Path, number: int) -> Example:
    """The example that a text is, from line `number` of a file.

    Raises:
      UserError: it is none.
    """

  @abc.abstractmethod
  def _settings(self) -> object:
    """What decides how a file is read."""

  def _paths(self, split: str) -> list[Path]:
    setting = f'{type(self).__name__}.{split}'
    pattern = getattr(self, split) if split in self.splits() else None
    if pattern is None:
      raise UserError(f"{setting} is not set: there is no split '{split}'")
    pattern = str(Path(pattern).expanduser())
    # A name with brackets in it is a name before it is a pattern.
    found = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
    paths = [path for path in map(Path, found) if path.is_file()]
    if not paths and Path(pattern).is_dir():
      raise UserError(
        f"{setting} = '{pattern}' is a folder: write '{pattern}/**/*.txt' or the like"
      )
    if not paths:
      raise UserError(f"{setting} = '{pattern}' matches no file (from {Path.cwd()})")
    return paths


class FileExamples(Examples):
  """Examples in files, of which only the places are in memory."""

  def __init__(self, source: FileSource):
    self.source = source
    self.paths: list[Path] = []
    # For each example: number of its file, first byte, byte after the last, number of its line.
    self.places = array.array('q')

  def add(self, path: Path) -> int:
    """Looks at every example of a file. Returns how many there are."""
    before = len(self)
    self.paths.append(path)
    for start, text, number in self._texts(path):
      if text.strip():
        self.source.example(text, path, number)
        size = len(text.encode())
        self.places.extend((len(self.paths) - 1, start, start + size, number))
    return len(self) - before

  def _texts(self, path: Path) -> Iterator[tuple[int, str, int]]:
    """First byte, text and line number of each part of a file.

    Only \\n and \\r\\n end a line: U+2028 and the like may stand in a JSON string.
    """
    with _opened(path) as file:
      start = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
      file.seek(start)
      for number, part in enumerate(file if self.source.lines else [file.read()], 1):
        text = _decoded(part, path, start)
        if self.source.lines:
          text = text.removesuffix('\n').removesuffix('\r')
        yield start, text, number
        start += len(part)

  def __len__(self) -> int:
    return len(self.places) // 4

  def __getitem__(self, index):
    """The example at `index`; negative counts from the end."""
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    i = int(index)
    if not -len(self) <= i < len(self):
      raise IndexError(f'example {i} of {len(self)}')
    with _opened(self.paths[self.places[i % len(self) * 4]]) as file:
      return self._read(file, i % len(self))

  def __iter__(self):
    i = 0
    for number, path in enumerate(self.paths):
      with _opened(path) as file:
        while i < len(self) and self.places[4 * i] == number:
          yield self._read(file, i)
          i += 1

  def _read(self, file: io.BufferedReader, i: int) -> Example:
    which, start, stop, number = self.places[4 * i : 4 * i + 4]
    file.seek(start)
    text = _decoded(file.read(stop - start), self.paths[which], start)
    return self.source.example(text, self.paths[which], number)

  def label_values(self):
    """Not known without reading all."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
  try:
    with path.open('rb') as file:
      yield file
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error


def _decoded(part: bytes, path: Path, start: int) -> str:
  """The text of a part of a file that starts at a byte."""
  try:
    return part.decode()
  except UnicodeDecodeError as error:
    byte = start + error.start
    raise UserError(f'{path} is not UTF-8 text (byte {byte}): convert it first') from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles(FileSource):
  """Plain text, UTF-8: `text` and `name` for each file, or for each line.

  Attributes:
    per_line: each line that is not blank is an example of its own.
  """

  per_line: bool = False

  def _settings(self) -> object:
    return self.per_line

  @property
  def lines(self):
    """As set."""
    return self.per_line

  def example(self, text, path, number):
    """The text as it is."""
    return {'text': text, 'name': path.name}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines(FileSource):
  """A JSON object a line.

  Attributes:
    fields: our name -> the objects' ({'source': 'en', 'target': 'de'}); empty: they have `text`, or
      `source` and `target`, `words` and `labels` (lists), or `question` and `context`.
  """

  fields: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

  def _settings(self) -> object:
    return sorted(self.fields.items())

  def example(self, text, path, number):
    """The object of a line."""
    where = f'{path}:{number}'
    try:
      found = json.loads(text)
      if '\\u' in text:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
      raise UserError(f'{where}: half of a surrogate pair is no text') from error
    except (ValueError, RecursionError) as error:
      raise UserError(f'{where}: not JSON ({error}): write one object a line') from error
    if not isinstance(found, dict):
      raise UserError(f'{where}: not a JSON object: write {{"text": "..."}}')
    if not self.fields:
      wanted = next((names for names in KINDS if names[0] in found), ('text',))
      _require(found, {name: name for name in wanted}, where)
      return found
    _require(found, self.fields, where)
    return {ours: found[theirs] for ours, theirs in self.fields.items()}


# What objects may be made of, told by the first name.
KINDS = (('source', 'target'), ('question', 'context'), ('words', 'labels'), ('text',))
# What is no text; tasks look at it themselves.
NO_TEXT = ('words', 'labels', 'label', 'answers', 'starts')


def _require(found: dict[str, Any], fields: Mapping[str, str], where: str) -> None:
  for ours, name in fields.items():
    if name not in found or not (ours in NO_TEXT or isinstance(found[name], str)):
      has = f'it has {", ".join(map(repr, found))}' if name not in found else 'it is no text'
      kind = 'a value' if ours in NO_TEXT else 'text'
      raise UserError(
        f"{where}: needs {kind} under '{name}', {has} (JsonLines.fields names fields)"
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TSV(FileSource):
  """Tab-separated values, no header.

  Attributes:
    columns: names of the columns.
  """

  columns: Annotated[Sequence[Text], NonEmpty] = ('source', 'target')

  def __post_init__(self):
    # Equal and hashable however the sequence was written.
    object.__setattr__(self, 'columns', tuple(self.columns))

  def _settings(self) -> object:
    return self.columns

  def example(self, text, path, number):
    """The values of a line by column."""
    values = text.split('\t')
    if len(values) != len(self.columns):
      raise UserError(
        f'{path}:{number}: {len(values)} columns, but TSV.columns names '
        f'{len(self.columns)} ({", ".join(self.columns)}): mend the line or the names'
      )
    return dict(zip(self.columns, values, strict=True))
