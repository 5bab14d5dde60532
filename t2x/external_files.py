"""Files that others wrote, checked before they are used: regular files of limited size, JSON objects, and
fields of declared types and ranges."""

import abc
import dataclasses
import json
import reprlib
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from t2x.errors import UserError

# Bytes. The largest config.json that models have (thousands of class names) is about one megabyte, the
# largest vocabulary about forty.
SMALL, LARGE = 1 << 24, 1 << 28
# The default of a field that has none.
REQUIRED = object()

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def shown(value: Any) -> str:
  """A value in an error message: in one line, and short."""
  text = _repr.repr(value)
  return text if len(text) <= 120 else f'{text[:117]}...'


def printed(name: str) -> str:
  """A name as it is where it can be printed, else as `shown`."""
  return name if name.isprintable() else shown(name)


def read_bytes(path: Path, limit: int = LARGE) -> bytes:
  """The contents of a regular file.

  Raises:
    UserError: there is none, it cannot be read, or it is larger than `limit` bytes.
  """
  try:
    status = path.stat()
    # Opening a pipe would wait for its other end, and a device may have no end.
    if not stat.S_ISREG(status.st_mode):
      raise UserError(f'{path} is not a regular file')
    if status.st_size > limit:
      raise UserError(f'{path} is larger than {limit:,} bytes, more than any such file needs')
    return path.read_bytes()
  except (OSError, ValueError) as error:
    raise UserError(f'{path}: {getattr(error, "strerror", None) or error}') from error


def read_text(path: Path, limit: int = LARGE) -> str:
  """The contents of a text file.

  Raises:
    UserError: as `read_bytes`, or it is not UTF-8.
  """
  try:
    return read_bytes(path, limit).decode('utf-8')
  except UnicodeDecodeError as error:
    raise UserError(f'{path} is not text in UTF-8: {error}') from error


def read_json(path: Path, limit: int = SMALL) -> dict[str, Any]:
  """The object in a JSON file.

  Raises:
    UserError: as `read_text`, or it is not JSON, or JSON of another kind.
  """
  try:
    found = json.loads(read_text(path, limit))
  except RecursionError as error:
    raise UserError(f'{path} is not JSON that can be read: too many nested brackets') from error
  except ValueError as error:
    raise UserError(f'{path} is not JSON: {error}') from error
  if not isinstance(found, dict):
    raise UserError(f'{path} holds {shown(found)}, not a JSON object')
  return found


@dataclasses.dataclass(frozen=True)
class Field(abc.ABC):
  """The type, the range and the default of a field.

  Attributes:
    default: the value where the field is absent. Where that is None, the field may also be null.
  """

  default: Any

  @property
  @abc.abstractmethod
  def wanted(self) -> str:
    """The accepted values, for error messages."""

  @abc.abstractmethod
  def accepts(self, value: Any) -> bool:
    """Whether a value other than None has the type and lies in the range."""

  def convert(self, value: Any) -> Any:
    """An accepted value in the form in which it is used."""
    return value

  def restore(self, value: Any) -> Any:
    """The value that `convert` converts to `value`."""
    return value


class Bool(Field):
  """True or false."""

  @property
  def wanted(self):
    return 'True or False'

  def accepts(self, value):
    return isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class Int(Field):
  """A whole number from `low` to `high`."""

  low: int = 0
  high: int = 2**31 - 1

  @property
  def wanted(self):
    return f'a whole number from {self.low} to {self.high}'

  def accepts(self, value):
    return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclasses.dataclass(frozen=True)
class Float(Field):
  """A finite number from `low` to `high`, one of which may be excluded; ints become floats."""

  low: float = -1e30
  high: float = 1e30
  excluded: float | None = None

  @property
  def wanted(self):
    border = '' if self.excluded is None else f' other than {self.excluded:g}'
    return f'a number from {self.low:g} to {self.high:g}{border}'

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
  """The one value that is supported, or one that means the same."""

  others: tuple[Any, ...] = ()

  @property
  def wanted(self):
    return ' or '.join(map(repr, (self.default, *self.others)))

  def accepts(self, value):
    is_bool = isinstance(value, bool)
    return any(
      value == one and is_bool == isinstance(one, bool) for one in (self.default, *self.others)
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
  """The id of a token, or a list of several, as a tuple; negative ids stand for no token."""

  vocab_size: int = 2**31

  @property
  def wanted(self):
    return f'a token id below {self.vocab_size} or a list of token ids'

  def accepts(self, value):
    one = Int(None, -(2**31), self.vocab_size - 1)
    return one.accepts(value) or (isinstance(value, list) and all(map(one.accepts, value)))

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
    known = isinstance(value, list) and self.least <= len(value) <= self.most
    return known and all(map(self.item.accepts, value))


class Object(Field):
  """A JSON object."""

  @property
  def wanted(self):
    return 'a JSON object'

  def accepts(self, value):
    return isinstance(value, dict)


class Fields(Mapping[str, Any]):
  """The declared fields of a JSON object, each checked; what is not declared cannot be read.

  Args:
    given: the object.
    declared: the fields by name; one without a default is required.
    where: the file, for error messages.

  Raises:
    UserError: a field has another type or lies outside of its range, or is missing.
  """

  def __init__(self, given: Mapping[str, Any], declared: Mapping[str, Field], where: str):
    self.where = where
    self._values = {name: self._read(given, name, field) for name, field in declared.items()}

  def _read(self, given: Mapping[str, Any], name: str, field: Field) -> Any:
    value = given.get(name, field.default)
    if value is REQUIRED:
      raise UserError(f"{self.where} has no field '{name}'")
    if value is None and field.default is None:
      return None
    if value is None or not field.accepts(value):
      optional = ' or None' if field.default is None else ''
      raise self.refused(name, value, f'{field.wanted}{optional}')
    return field.convert(value)

  def refused(self, name: str, value: Any, wanted: str) -> UserError:
    """The error for a value that is not supported."""
    return UserError(f'{self.where}: {name} = {shown(value)} is not supported, only {wanted}')

  def __getitem__(self, name: str) -> Any:
    return self._values[name]

  def __iter__(self) -> Iterator[str]:
    return iter(self._values)

  def __len__(self) -> int:
    return len(self._values)
