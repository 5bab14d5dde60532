"""Validation of files from other programs: file size, JSON syntax, and types and ranges of fields."""

import abc
import csv
import dataclasses
import json
import os
import reprlib
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError

# Maximum size in bytes. The largest config.json files of models (thousands of class names) have about one
# megabyte, the largest vocabularies about forty.
SMALL, LARGE = 1 << 24, 1 << 28
# Default of a required field.
REQUIRED = object()

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def shown(value: object) -> str:
  """Returns a short repr of a value, in one line, for error messages."""
  text = _repr.repr(value)
  return text if len(text) <= 120 else f'{text[:117]}...'


def printed(name: str) -> str:
  """Returns a printable name unchanged, and others as `shown`."""
  return name if name.isprintable() else shown(name)


def check_regular(path: Path, status: os.stat_result) -> None:
  """Raises UserError for pipes and devices: opening a pipe waits for a writer, and a device may be endless."""
  if not stat.S_ISREG(status.st_mode):
    raise UserError(f'{path} is not a regular file')


def read_bytes(path: Path, limit: int = LARGE) -> bytes:
  """Reads a regular file.

  Raises:
    UserError: the file does not exist, cannot be read, or is larger than `limit` bytes.
  """
  try:
    status = path.stat()
    check_regular(path, status)
    if status.st_size > limit:
      raise UserError(f'{path} is larger than {limit:,} bytes, the limit for such files')
    return path.read_bytes()
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(f'{path} cannot be read: {reason}') from error


def read_text(path: Path, limit: int = LARGE) -> str:
  """Reads a UTF-8 text file.

  Raises:
    UserError: as `read_bytes`, or the file is not UTF-8.
  """
  try:
    return read_bytes(path, limit).decode('utf-8')
  except UnicodeDecodeError as error:
    raise UserError(f'{path} is not a UTF-8 text file: {error}') from error


def read_json(path: Path, limit: int = SMALL) -> dict[str, Any]:
  """Reads a JSON file that contains an object.

  Raises:
    UserError: as `read_text`, or the file is not JSON, or its value is not an object.
  """
  try:
    value = json.loads(read_text(path, limit))
  except RecursionError as error:
    raise UserError(f'{path} is not valid JSON: too many nested brackets') from error
  except ValueError as error:
    raise UserError(f'{path} is not valid JSON: {error}') from error
  if not isinstance(value, dict):
    raise UserError(f'{path} contains {shown(value)}, not a JSON object')
  return value


def csv_rows(
  lines: Iterable[str], delimiter: str = ',', where: Callable[[], str] = lambda: ''
) -> Iterator[list[str]]:
  """Yields the rows of CSV text with cells of any length; an empty line is an empty row.

  Args:
    lines: the text.
    delimiter: the character between cells.
    where: returns the location that begins the message of an error.

  Raises:
    UserError: the text is not CSV.
  """
  # An integer of C; the default refuses cells above 131,072 characters.
  csv.field_size_limit(sys.maxsize)
  try:
    yield from csv.reader(lines, delimiter=delimiter, strict=True)
  except csv.Error as error:
    raise UserError(f'{where()}not CSV ({error})') from error


@dataclasses.dataclass(frozen=True)
class Field(abc.ABC):
  """Type, range and default of a field.

  Attributes:
    default: the value of an absent field. If it is None, the field may also be null.
    nullable: whether the field may be null although its default is another value.
  """

  default: object
  nullable: bool = dataclasses.field(default=False, kw_only=True)

  @property
  @abc.abstractmethod
  def wanted(self) -> str:
    """The accepted values, for error messages."""

  @abc.abstractmethod
  def accepts(self, value: object) -> bool:
    """Returns whether a value other than None has the right type and range."""

  def convert(self, value: object) -> Any:
    """Converts an accepted value to the type that t2x uses."""
    return value

  def restore(self, value: object) -> Any:
    """Inverts `convert`."""
    return value


class Bool(Field):
  """A boolean."""

  @property
  def wanted(self):
    return 'True or False'

  def accepts(self, value):
    return isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class Int(Field):
  """An integer from `low` to `high`."""

  low: int = 0
  high: int = 2**31 - 1

  @property
  def wanted(self):
    return f'an integer from {self.low} to {self.high}'

  def accepts(self, value):
    return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclasses.dataclass(frozen=True)
class Float(Field):
  """A finite number from `low` to `high`, except `excluded`. Integers are converted to floats."""

  low: float = -1e30
  high: float = 1e30
  excluded: float | None = None

  @property
  def wanted(self):
    exception = '' if self.excluded is None else f' except {self.excluded:g}'
    return f'a number from {self.low:g} to {self.high:g}{exception}'

  def accepts(self, value):
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and self.low <= value <= self.high and value != self.excluded

  def convert(self, value):
    return float(value)


@dataclasses.dataclass(frozen=True)
class Choice(Field):
  """One of several strings."""

  names: Collection[str]

  @property
  def wanted(self):
    return ' or '.join(map(repr, self.names))

  def accepts(self, value):
    return isinstance(value, str) and value in self.names


@dataclasses.dataclass(frozen=True)
class Only(Field):
  """The only supported value, or one of its synonyms."""

  others: tuple[Any, ...] = ()

  @property
  def wanted(self):
    return ' or '.join(map(repr, (self.default, *self.others)))

  def accepts(self, value):
    is_bool = isinstance(value, bool)
    return any(
      value == other and is_bool == isinstance(other, bool)
      for other in (self.default, *self.others)
    )


class Text(Field):
  """A string of printable characters."""

  @property
  def wanted(self):
    return 'printable text'

  def accepts(self, value):
    return isinstance(value, str) and value.isprintable()


@dataclasses.dataclass(frozen=True)
class Ids(Field):
  """A token id or a list of token ids, converted to a tuple without negative ids, which mean no token."""

  vocab_size: int = 2**31

  @property
  def wanted(self):
    return f'a token id below {self.vocab_size} or a list of token ids'

  def accepts(self, value):
    token_id = Int(None, -(2**31), self.vocab_size - 1)
    return token_id.accepts(value) or (
      isinstance(value, list) and all(map(token_id.accepts, value))
    )

  def convert(self, value):
    return tuple(i for i in (value if isinstance(value, list) else [value]) if i >= 0)


@dataclasses.dataclass(frozen=True)
class Many(Field):
  """A list of `least` to `most` items that `item` accepts."""

  item: Field
  least: int = 0
  most: int = 1 << 20

  @property
  def wanted(self):
    return f'a list of {self.least} to {self.most} items, each {self.item.wanted}'

  def accepts(self, value):
    has_length = isinstance(value, list) and self.least <= len(value) <= self.most
    return has_length and all(map(self.item.accepts, value))


class Object(Field):
  """A JSON object."""

  @property
  def wanted(self):
    return 'a JSON object'

  def accepts(self, value):
    return isinstance(value, dict)


class Fields(Mapping[str, Any]):
  """The declared fields of a JSON object, validated. Other fields cannot be read.

  Args:
    values: the JSON object.
    declared: the fields by name; one without a default is required.
    where: the file, for error messages.

  Raises:
    UserError: a field has the wrong type, is out of range, or is missing.
  """

  def __init__(self, values: Mapping[str, Any], declared: Mapping[str, Field], where: str):
    self.where = where
    self._values = {name: self._read(values, name, field) for name, field in declared.items()}

  def _read(self, values: Mapping[str, Any], name: str, field: Field) -> Any:
    value = values.get(name, field.default)
    if value is REQUIRED:
      raise UserError(f"{self.where} has no field '{name}', which is required")
    nullable = field.nullable or field.default is None
    if value is None and nullable:
      return None
    if value is None or not field.accepts(value):
      optional = ' or None' if nullable else ''
      raise self.refused(name, value, f'{field.wanted}{optional}')
    return field.convert(value)

  def refused(self, name: str, value: object, expected: str) -> UserError:
    """Returns the error for a value that is not supported."""
    return UserError(f'{self.where}: {name} = {shown(value)} is not supported: must be {expected}')

  def __getitem__(self, name: str) -> Any:
    return self._values[name]

  def __iter__(self) -> Iterator[str]:
    return iter(self._values)

  def __len__(self) -> int:
    return len(self._values)
