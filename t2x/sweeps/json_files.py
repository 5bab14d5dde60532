"""Reads the JSON files of a sweep's folder, which may be damaged or written by anyone.

Every value is checked against the annotation of its field, and text is made printable: whatever
prints it (a terminal, a report, a table) can print it as it is.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from t2x.errors import UserError, first_line, printable

T = TypeVar('T')
# Text of several lines; all other text is one line.
Lines = Annotated[str, 'several lines']

# Larger integers are no sizes, counts or seeds, and do not fit into a float.
_LARGEST = 2**63


class Damaged(UserError):
  """A file does not hold what t2x wrote there."""


def is_number(value: Any) -> bool:
  """Whether a value read from JSON is a finite number."""
  try:
    return type(value) in (int, float) and math.isfinite(value)
  except OverflowError:
    return False


def _is_whole(value: Any) -> bool:
  return type(value) is int and abs(value) < _LARGEST


def read_json(path: Path) -> Any:
  """Reads a JSON file.

  Raises:
    FileNotFoundError: there is none.
    Damaged: it cannot be read.
  """
  try:
    # Opening a pipe would wait for a writer.
    if path.exists() and not path.is_file():
      raise Damaged(f'{path} is damaged: not a file')
    content = path.read_bytes()
  except (FileNotFoundError, NotADirectoryError):
    raise FileNotFoundError(path) from None
  except OSError as error:
    raise Damaged(f'{path} cannot be read: {error.strerror}') from error
  try:
    return json.loads(content)
  except (ValueError, RecursionError) as error:
    why = printable(first_line(error)) if content.strip() else 'it is empty'
    raise Damaged(f'{path} is damaged: {why}') from error


def parsed(kind: type[T], given: Any, path: Path) -> T:
  """An instance of a dataclass from JSON. Fields that it does not have are left out.

  Args:
    kind: a dataclass.
    given: what the file holds.
    path: the file, for messages.

  Raises:
    Damaged: a field is missing, or its value does not fit its annotation.
  """
  try:
    return _instance(kind, given, lambda where: Damaged(f'{path} is damaged: {where}'), '')
  except RecursionError as error:
    raise Damaged(f'{path} is damaged: nested too deeply') from error


_Error = Callable[[str], Damaged]


def _instance(kind: Any, given: Any, error: _Error, where: str) -> Any:
  if not isinstance(given, dict):
    raise error(f'{where or "its content"} is not an object')
  hints = typing.get_type_hints(kind, include_extras=True)
  found = {}
  for field in dataclasses.fields(kind):
    at = f'{where}.{field.name}'.lstrip('.')
    if field.name in given:
      found[field.name] = _value(hints[field.name], given[field.name], error, at)
    elif field.default is field.default_factory is dataclasses.MISSING:
      raise error(f'{at} is missing')
  return kind(**found)


def _value(hint: Any, given: Any, error: _Error, where: str) -> Any:
  """The value as a field annotated with `hint` has it."""
  origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
  if hint is Any:
    return _plain(given)
  if origin is types.UnionType:  # `X | None`.
    return None if given is None else _value(args[0], given, error, where)
  if origin is typing.Literal:
    if given not in args:
      raise error(f'{where} is none of {", ".join(map(repr, args))}')
    return given
  if origin is tuple:
    if not isinstance(given, list):
      raise error(f'{where} is not a list')
    return tuple(_value(args[0], one, error, f'{where}[{i}]') for i, one in enumerate(given))
  if origin is Mapping:
    if not isinstance(given, dict):
      raise error(f'{where} is not an object')
    return {
      printable(name): _value(args[1], one, error, f'{where}[{printable(name)!r}]')
      for name, one in given.items()
    }
  if dataclasses.is_dataclass(hint):
    return _instance(hint, given, error, where)
  if hint in (str, Lines):
    if not isinstance(given, str):
      raise error(f'{where} is not a text')
    return printable(given, lines=hint is Lines)
  if not (_is_whole(given) or (hint is float and is_number(given))):
    raise error(f'{where} is not {"an integer" if hint is int else "a number"}')
  return hint(given)


def _plain(given: Any) -> Any:
  """A value of JSON with printable text."""
  if isinstance(given, str):
    return printable(given)
  if isinstance(given, dict):
    return {printable(name): _plain(one) for name, one in given.items()}
  return [*map(_plain, given)] if isinstance(given, list) else given


def metric_lines(path: Path, problems: list[str] | None = None) -> list[dict[str, Any]]:
  """The lines of metrics.jsonl or timing.jsonl. The run may be writing the last one.

  Args:
    path: the file; none without it.
    problems: gets a line that names the file where it is damaged; for a run that has ended.
  """
  damaged, found = [], []
  try:
    # See `read_json`.
    content = path.read_bytes() if path.is_file() else b''
  except OSError:
    content = b'unreadable'
  for number, line in enumerate(content.removesuffix(b'\n').split(b'\n') if content else (), 1):
    try:
      text = line.decode()
      one = json.loads(text)
      # Nearly all lines are printable as they stand, escapes included: there are none.
      if '\\' in text or not text.isprintable():
        one = _plain(one)
    except (ValueError, RecursionError):
      one = None
    if isinstance(one, dict) and _is_whole(one.get('step')) and isinstance(one.get('split'), str):
      found.append(one)
    else:
      damaged.append(number)
  if damaged and problems is not None:
    more = f' and {len(damaged) - 1} more' if len(damaged) > 1 else ''
    problems.append(f'{path} is damaged: line {damaged[0]}{more} left out')
  return found
