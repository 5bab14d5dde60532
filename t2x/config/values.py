"""What stands on the right-hand side of a gin statement, where it stands, and how it is written."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from t2x.errors import UserError


@dataclasses.dataclass(frozen=True)
class Place:
  """A line of a file; `line` 0 and file 'command line' for an override."""

  file: str
  line: int

  def __str__(self) -> str:
    return f'{self.file}:{self.line}' if self.line else self.file


COMMAND_LINE = Place('command line', 0)


@dataclasses.dataclass(frozen=True)
class Finding:
  """One thing that is wrong, and where."""

  place: Place
  message: str

  def __str__(self) -> str:
    return f'{self.place}: {self.message}'


def raise_findings(findings: Iterable[Finding]) -> None:
  """Raises one UserError with a line for each finding, by file and line; nothing when there is none."""
  found = sorted(
    set(findings), key=lambda f: (f.place == COMMAND_LINE, f.place.file, f.place.line, f.message)
  )
  if found:
    raise UserError('\n'.join(map(str, found)))


@dataclasses.dataclass(frozen=True)
class Reference:
  """`@scope/Name` (evaluate False: to be built later) or `@scope/Name()` (an object)."""

  scope: str
  name: str
  evaluate: bool

  def __str__(self) -> str:
    scope = f'{self.scope}/' if self.scope else ''
    return f'@{scope}{self.name}{"()" if self.evaluate else ""}'


@dataclasses.dataclass(frozen=True)
class Macro:
  """`%name`."""

  name: str

  def __str__(self) -> str:
    return f'%{self.name}'


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
  """A copy of `value` with `function` applied to all that is not a list, tuple or dict."""
  if type(value) in (list, tuple):
    return type(value)(map_leaves(function, item) for item in value)
  if type(value) is dict:
    return {map_leaves(function, k): map_leaves(function, v) for k, v in value.items()}
  return function(value)


def leaves(value: Any) -> list[Any]:
  """All within `value` that is not a list, tuple or dict."""
  found: list[Any] = []
  map_leaves(found.append, value)
  return found


def items_in_gin(value: list | tuple | dict) -> tuple[str, list[str], str]:
  """The opening bracket of a container, the gin text of each item, and the closing bracket."""
  if isinstance(value, dict):
    return '{', [f'{to_gin(key)}: {to_gin(item)}' for key, item in value.items()], '}'
  opening, closing = '[]' if isinstance(value, list) else '()'
  return opening, [to_gin(item) for item in value], closing


def to_gin(value: Any) -> str:
  """The gin text of a value; parsing it gives the value again."""
  if isinstance(value, (list, tuple, dict)):
    opening, items, closing = items_in_gin(value)
    comma = ',' if isinstance(value, tuple) and len(items) == 1 else ''
    return f'{opening}{", ".join(items)}{comma}{closing}'
  if isinstance(value, (Reference, Macro)):
    return str(value)
  if isinstance(value, float):
    # A literal that overflows is the only way to write infinity.
    return repr(value).replace('inf', '1e999')
  if isinstance(value, complex):
    return f'{value.imag!r}j'.replace('inf', '1e999')
  return repr(value)


def gin_of(name: str, part: Any) -> str:
  """Gin text that binds `name` to a frozen dataclass, which has no two parts of one class."""

  def text(value):
    def one(leaf):
      return Reference('', type(leaf).__name__, True) if dataclasses.is_dataclass(leaf) else leaf

    return to_gin(map_leaves(one, value))

  lines = [f'{name} = {text(part)}']
  pending = [part]
  while pending:
    holder = pending.pop(0)
    for field in dataclasses.fields(holder):
      value = getattr(holder, field.name)
      if value != field.default:
        lines.append(f'{type(holder).__name__}.{field.name} = {text(value)}')
        pending += filter(dataclasses.is_dataclass, leaves(value))
  return '\n'.join(lines) + '\n'
