"""Your own files: text, JSON lines, tab-separated values. No registry, no preparation."""

import dataclasses
import functools
import glob
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from t2x.data.folders import fingerprint
from t2x.data.sources.base import Example, Source
from t2x.errors import UserError

__all__ = ['TSV', 'JsonLines', 'TextFiles']


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource(Source):
  """Files by split.

  Attributes:
    train: a path or glob.
    validation: a path or glob; None: no such split.
    test: a path or glob; None: no such split.
  """

  train: str
  validation: str | None = None
  test: str | None = None

  def splits(self) -> tuple[str, ...]:
    """Those of train, validation and test that are set."""
    return tuple(name for name in ('train', 'validation', 'test') if getattr(self, name))

  def _paths(self, split: str) -> list[Path]:
    pattern = getattr(self, split, None)
    if pattern is None:
      raise UserError(f"{type(self).__name__}.{split} is not set: there is no split '{split}'")
    paths = sorted(Path(path) for path in glob.glob(pattern, recursive=True))
    paths = [path for path in paths if path.is_file()]
    if not paths:
      raise UserError(f"{type(self).__name__}.{split} = '{pattern}' matches no file")
    return paths

  def fingerprint(self) -> str:
    """Of the settings and of every byte of the files."""
    digest = hashlib.sha256()
    for split in self.splits():
      for path in self._paths(split):
        digest.update(f'{split} {path.name} '.encode())
        digest.update(hashlib.sha256(_bytes(path)).digest())
    return fingerprint(self, digest.hexdigest())

  def _examples(self, split: str, read: Callable[[Path], list[Example]]) -> list[Example]:
    examples: list[Example] = []
    for path in self._paths(split):
      found = read(path)
      if not found:
        raise UserError(f'{path} is empty: nothing to read')
      examples += found
    return examples


def _bytes(path: Path) -> bytes:
  try:
    return path.read_bytes()
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error


def _text(path: Path) -> str:
  try:
    return _bytes(path).decode('utf-8')
  except UnicodeDecodeError as error:
    raise UserError(f'{path} is not UTF-8 text (byte {error.start}): convert it first') from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles(FileSource):
  """Plain text, UTF-8: `text` and `name` for each file, or for each line.

  Attributes:
    per_line: each line that is not blank is an example of its own.
  """

  per_line: bool = False

  def load(self, split: str) -> Sequence[Example]:
    """All examples of a split, in memory."""

    def read(path: Path) -> list[Example]:
      text = _text(path)
      if self.per_line:
        return [{'text': line, 'name': path.name} for line in text.splitlines() if line.strip()]
      return [{'text': text, 'name': path.name}] if text else []

    return self._examples(split, read)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines(FileSource):
  """A JSON object a line.

  Attributes:
    fields: the fields that each object must have, as strings.
  """

  fields: Sequence[str] = ('text',)

  def load(self, split: str) -> Sequence[Example]:
    """All examples of a split, in memory."""
    return self._examples(split, functools.partial(_json_lines, fields=self.fields))


def _json_lines(path: Path, fields: Sequence[str]) -> list[Example]:
  examples = []
  for number, line in enumerate(_text(path).splitlines(), 1):
    if not line.strip():
      continue
    try:
      example = json.loads(line)
    except ValueError as error:
      raise UserError(f'{path}:{number}: no JSON object ({error})') from error
    for field in fields:
      if not isinstance(example, dict) or not isinstance(example.get(field), str):
        raise UserError(f"{path}:{number}: needs a JSON object with text under '{field}'")
    examples.append(example)
  return examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class TSV(FileSource):
  """Tab-separated values, no header.

  Attributes:
    columns: names of the columns.
  """

  columns: Sequence[str] = ('source', 'target')

  def load(self, split: str) -> Sequence[Example]:
    """All examples of a split, in memory."""

    def read(path: Path) -> list[Example]:
      examples = []
      for number, line in enumerate(_text(path).split('\n'), 1):
        values = line.rstrip('\r').split('\t')
        if values == ['']:
          continue
        if len(values) != len(self.columns):
          raise UserError(
            f'{path}:{number}: {len(values)} columns, TSV.columns names {len(self.columns)}'
          )
        examples.append(dict(zip(self.columns, values, strict=True)))
      return examples

    return self._examples(split, read)
