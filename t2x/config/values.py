"""Values of gin statements, their places in files, and their gin text."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from t2x.base.errors import UserError

__all__ = ['COMMAND_LINE', 'Finding', 'Macro', 'gin_of', 'raise_findings', 'to_gin']


@dataclasses.dataclass(frozen=True)
class Place:
  """A line of a file. An override has the file 'command line' and the line 0."""

  file: str
  line: int

  def __str__(self) -> str:
    return f'{self.file}:{self.line}' if self.line else self.file


COMMAND_LINE = Place('command line', 0)


@dataclasses.dataclass(frozen=True)
class Finding:
  """An error and its place."""

  place: Place
  message: str

  def __str__(self) -> str:
    return f'{self.place}: {self.message}'


def raise_findings(findings: Iterable[Finding]) -> None:
  """Raises a UserError with one line per finding, sorted by file and line, if there are any."""
  unique = sorted(
    set(findings), key=lambda f: (f.place == COMMAND_LINE, f.place.file, f.place.line, f.message)
  )
  if unique:
    raise UserError('\n'.join(map(str, unique)))


@dataclasses.dataclass(frozen=True)
class Reference:
  """`@scope/Name` (a factory, `evaluate` is False) or `@scope/Name()` (an object)."""

  scope: str
  name: str
  evaluate: bool

  def __str__(self) -> str:
    scope = f'{self.scope}/' if self.scope else ''
    return f'@{scope}{self.name}{"()" if self.evaluate else ""}'


@dataclasses.dataclass(frozen=True)
class Macro:
  """A use of a macro: `%name`."""

  name: str

  def __str__(self) -> str:
    return f'%{self.name}'


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
  """Copies nested lists, tuples and dicts, with `function` applied to every other value."""
  if type(value) in (list, tuple):
    return type(value)(map_leaves(function, item) for item in value)
  if type(value) is dict:
    return {map_leaves(function, k): map_leaves(function, v) for k, v in value.items()}
  return function(value)


def leaves(value: object) -> list[Any]:
  """Returns the values in nested lists, tuples and dicts."""
  items: list[Any] = []
  map_leaves(items.append, value)
  return items


def items_in_gin(value: list | tuple | dict) -> tuple[str, list[str], str]:
  """Returns the opening bracket of a container, the gin text of each item, and the closing bracket."""
  if isinstance(value, dict):
    return '{', [f'{to_gin(key)}: {to_gin(item)}' for key, item in value.items()], '}'
  opening, closing = '[]' if isinstance(value, list) else '()'
  return opening, [to_gin(item) for item in value], closing


def to_gin(value: object) -> str:
  """Returns the gin text of a value, which parses to an equal value."""
  if isinstance(value, (list, tuple, dict)):
    opening, items, closing = items_in_gin(value)
    comma = ',' if isinstance(value, tuple) and len(items) == 1 else ''
    return f'{opening}{", ".join(items)}{comma}{closing}'
  if isinstance(value, (Reference, Macro)):
    return str(value)
  if isinstance(value, float):
    # gin has no literal for infinity except one that overflows.
    return repr(value).replace('inf', '1e999')
  if isinstance(value, complex):
    return f'{value.imag!r}j'.replace('inf', '1e999')
  return repr(value)


def gin_of(name: str, part: object) -> str:
  """Returns gin text that binds `name` to a frozen dataclass.

  Args:
    name: the parameter to bind.
    part: the object, in which no two dataclasses have the same class.
  """

  def text(value):
    def reference(leaf):
      return Reference('', type(leaf).__name__, True) if dataclasses.is_dataclass(leaf) else leaf

    return to_gin(map_leaves(reference, value))

  lines = [f'{name} = {text(part)}']
  pending: list[Any] = [part]
  while pending:
    item = pending.pop(0)
    for field in dataclasses.fields(item):
      value = getattr(item, field.name)
      if value != field.default:
        lines.append(f'{type(item).__name__}.{field.name} = {text(value)}')
        pending += filter(dataclasses.is_dataclass, leaves(value))
  return '\n'.join(lines) + '\n'
