"""Your own files: text, JSON lines, tab-separated values. No registry, no preparation."""

import abc
import dataclasses
import glob
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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

  def load(self, split: str) -> Sequence[Example]:
    """All examples of a split, in memory."""
    examples: list[Example] = []
    for path in self._paths(split):
      found = self._read(path)
      if not found:
        raise UserError(f'{path} is empty: remove it from {type(self).__name__}.{split}')
      examples += found
    return examples

  def fingerprint(self) -> str:
    """Of the settings and of the names and every byte of the files, wherever they are."""
    digest = hashlib.sha256()
    for split in self.splits():
      for path in self._paths(split):
        digest.update(f'{split} {path.name}\0'.encode())
        digest.update(hashlib.sha256(_bytes(path)).digest())
    return fingerprint(type(self).__name__, self._settings(), digest.hexdigest())

  @abc.abstractmethod
  def _read(self, path: Path) -> list[Example]: ...

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


def _bytes(path: Path) -> bytes:
  try:
    return path.read_bytes()
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error


def _text(path: Path) -> str:
  try:
    return _bytes(path).decode('utf-8-sig')
  except UnicodeDecodeError as error:
    raise UserError(f'{path} is not UTF-8 text (byte {error.start}): convert it first') from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles(FileSource):
  """Plain text, UTF-8: `text` and `name` for each file, or for each line.

  Attributes:
    per_line: each line that is not blank is an example of its own.
  """

  per_line: bool = False

  def _settings(self) -> object:
    return self.per_line

  def _read(self, path: Path) -> list[Example]:
    text = _text(path)
    if self.per_line:
      return [{'text': line, 'name': path.name} for _, line in _lines(text)]
    return [{'text': text, 'name': path.name}] if text.strip() else []


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

  def _read(self, path: Path) -> list[Example]:
    return [self._example(line, f'{path}:{number}') for number, line in _lines(_text(path))]

  def _example(self, line: str, where: str) -> Example:
    try:
      found = json.loads(line)
      if '\\u' in line:
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

  columns: Sequence[str] = ('source', 'target')

  def __post_init__(self):
    # Equal and hashable however the sequence was written.
    object.__setattr__(self, 'columns', tuple(self.columns))

  def _settings(self) -> object:
    return self.columns

  def _read(self, path: Path) -> list[Example]:
    examples = []
    for number, line in _lines(_text(path)):
      values = line.split('\t')
      if len(values) != len(self.columns):
        raise UserError(
          f'{path}:{number}: {len(values)} columns, but TSV.columns names '
          f'{len(self.columns)} ({", ".join(self.columns)}): mend the line or the names'
        )
      examples.append(dict(zip(self.columns, values, strict=True)))
    return examples


def _lines(text: str) -> list[tuple[int, str]]:
  """Lines that are not blank, with their numbers. Only \\n and \\r\\n end a line: U+2028 and the
  like may stand in a JSON string."""
  lines = (line.removesuffix('\r') for line in text.split('\n'))
  return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
