"""What stands on the right-hand side of a gin statement, where it stands, and how it is written."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from t2x.errors import UserError

__all__ = [
  'COMMAND_LINE',
  'Finding',
  'Macro',
  'Place',
  'Reference',
  'leaves',
  'map_leaves',
  'raise_findings',
  'to_gin',
]


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


def leaves(value: Any) -> Iterator[Any]:
  """All within `value` that is not a list, tuple or dict."""
  if type(value) in (list, tuple):
    for item in value:
      yield from leaves(item)
  elif type(value) is dict:
    for key, item in value.items():
      yield from leaves(key)
      yield from leaves(item)
  else:
    yield value


def to_gin(value: Any) -> str:
  """The gin text of a value; parsing it gives the value again."""
  if isinstance(value, list):
    return f'[{", ".join(map(to_gin, value))}]'
  if isinstance(value, tuple):
    return f'({", ".join(map(to_gin, value))}{"," if len(value) == 1 else ""})'
  if isinstance(value, dict):
    return f'{{{", ".join(f"{to_gin(k)}: {to_gin(v)}" for k, v in value.items())}}}'
  if isinstance(value, (Reference, Macro)):
    return str(value)
  if isinstance(value, float):
    # A literal that overflows is the only way to write infinity.
    return repr(value).replace('inf', '1e999')
  if isinstance(value, complex):
    return f'{value.imag!r}j'.replace('inf', '1e999')
  return repr(value)
