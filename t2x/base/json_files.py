"""JSON files of sweeps and runs: written from dataclasses; read files may be damaged or come from an untrusted source.

Every value is checked against the annotation of its field. Control characters in text are escaped,
so that terminals and reports can print it unchanged.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeGuard, TypeVar, cast

from t2x.base.errors import UserError, first_line, printable
from t2x.base.external_files import read_bytes
from t2x.base.files import write_atomically

T = TypeVar('T')
# Annotation of text with newlines; all other text is a single line.
Lines = Annotated[str, 'several lines']

# Larger integers cannot be sizes, counts or seeds, and do not fit into a float.
_LARGEST = 2**63


class _Dataclass(Protocol):
  """An instance of any dataclass."""

  __dataclass_fields__: ClassVar[dict[str, Any]]


class Damaged(UserError):
  """Raised for a file whose content is not what t2x writes there."""


def is_number(value: object) -> TypeGuard[float]:
  """Returns True if a value read from JSON is a finite number."""
  try:
    return type(value) in (int, float) and math.isfinite(cast(float, value))
  except OverflowError:
    return False


def rounded(value: object, digits: int) -> float | int | None:
  """Returns a number with `digits` significant digits; None if the value is not a finite number."""
  # Larger numbers may be rounded to infinity.
  if not is_number(value) or abs(value) > 1e300:
    return None
  result = float(f'{value:.{digits}g}')
  return int(result) if result.is_integer() else result


def is_integer(value: object) -> bool:
  return type(value) is int and abs(value) < _LARGEST


def read_json(path: Path) -> Any:
  """Reads a JSON file.

  Raises:
    FileNotFoundError: the file does not exist.
    Damaged: it cannot be read or parsed.
  """
  if not path.exists():
    raise FileNotFoundError(path)
  try:
    content = read_bytes(path)
  except UserError as error:
    raise Damaged(f'{path} is damaged: {error}') from error
  try:
    return json.loads(content)
  except (ValueError, RecursionError) as error:
    reason = printable(first_line(error)) if content.strip() else 'it is empty'
    raise Damaged(f'{path} is damaged: {reason}') from error


def write_json(path: Path, content: _Dataclass) -> None:
  """Writes a dataclass as a JSON file; creates its folder."""
  path.parent.mkdir(parents=True, exist_ok=True)
  text = json.dumps(dataclasses.asdict(content), indent=1, ensure_ascii=False) + '\n'
  write_atomically(path, text.encode())


def dataclass_from_json(kind: type[T], content: object, path: Path) -> T:
  """Builds an instance of a dataclass from JSON. Unknown fields are ignored.

  Args:
    kind: a dataclass.
    content: the parsed content of the file.
    path: path of the file, for error messages.

  Raises:
    Damaged: a field is missing, or its value does not match its annotation.
  """
  try:
    return _instance(kind, content, lambda where: Damaged(f'{path} is damaged: {where}'), '')
  except RecursionError as error:
    raise Damaged(f'{path} is damaged: nested too deeply') from error


_Error = Callable[[str], Damaged]


def _instance(kind: type, value: object, error: _Error, where: str) -> Any:
  if not isinstance(value, dict):
    raise error(f'{where or "its content"} is not an object')
  hints = typing.get_type_hints(kind, include_extras=True)
  fields = {}
  for field in dataclasses.fields(kind):
    at = f'{where}.{field.name}'.lstrip('.')
    if field.name in value:
      fields[field.name] = _value(hints[field.name], value[field.name], error, at)
    elif field.default is field.default_factory is dataclasses.MISSING:
      raise error(f'{at} is missing')
  return kind(**fields)


def _value(hint: Any, value: Any, error: _Error, where: str) -> Any:
  """Converts a JSON value to the type of a field annotated with `hint`."""
  origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
  if hint is Any:
    return escaped(value)
  if origin is types.UnionType:  # `X | None`.
    return None if value is None else _value(args[0], value, error, where)
  if origin is typing.Literal:
    if value not in args:
      raise error(f'{where} must be one of {", ".join(map(repr, args))}')
    return value
  if origin is tuple:
    if not isinstance(value, list):
      raise error(f'{where} is not a list')
    return tuple(_value(args[0], item, error, f'{where}[{i}]') for i, item in enumerate(value))
  if origin is Mapping:
    if not isinstance(value, dict):
      raise error(f'{where} is not an object')
    return {
      printable(name): _value(args[1], item, error, f'{where}[{printable(name)!r}]')
      for name, item in value.items()
    }
  if dataclasses.is_dataclass(hint):
    return _instance(cast(type, hint), value, error, where)
  if hint is bool:
    if not isinstance(value, bool):
      raise error(f'{where} is not true or false')
    return value
  if hint in (str, Lines):
    if not isinstance(value, str):
      raise error(f'{where} is not a string')
    return printable(value, lines=hint is Lines)
  if not (is_integer(value) or (hint is float and is_number(value))):
    raise error(f'{where} is not {"an integer" if hint is int else "a number"}')
  return hint(value)


def escaped(value: object) -> Any:
  """Returns a JSON value with the control characters in its strings escaped."""
  if isinstance(value, str):
    return printable(value)
  if isinstance(value, dict):
    return {printable(name): escaped(item) for name, item in value.items()}
  return [*map(escaped, value)] if isinstance(value, list) else value
