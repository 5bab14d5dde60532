"""Table of bindings, which resolves names and conflicts between statements.

The command line overrides files, scoped bindings included, and so do the gin files of a variant. Later statements
override earlier ones. For a part in a scope, the longest bound prefix of the scope wins.
"""

import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence

from t2x.base.suggestions import closest, did_you_mean
from t2x.config.parse import Statement
from t2x.config.registries import Registry
from t2x.config.signature import Part
from t2x.config.sources import module_defining
from t2x.config.values import COMMAND_LINE, Finding, Place

__all__ = ['split_scope']

Scope = tuple[str, ...]


def split_scope(scope: str) -> Scope:
  """Splits a gin scope: 'a/b' -> ('a', 'b')."""
  return tuple(scope.split('/')) if scope else ()


@dataclasses.dataclass(frozen=True)
class Binding:
  """A statement with its part and parameter.

  Attributes:
    statement: the statement.
    part: the part that it binds.
    param: the parameter that it binds.
    is_guess: True if a name is misspelled and `part` or `param` is the most similar one.
  """

  statement: Statement
  part: Part
  param: str
  is_guess: bool


class Bindings:
  """Table of the statements of a config, with their names looked up in a registry.

  Unknown names become findings. Resolution then continues with the most similar name, so that a
  misspelling is reported only once.
  """

  def __init__(
    self,
    registry: Registry,
    statements: Sequence[Statement],
    *,
    complete: bool,
    overriding: Collection[str] = (),
  ):
    self.registry = registry
    # Folders that imports of the user's modules search.
    self._folders = [
      *dict.fromkeys(os.path.dirname(s.place.file) for s in statements if s.place.line),
      os.getcwd(),
    ]
    self.complete = complete
    # Sources of statements that override scoped bindings of other sources, in increasing order.
    self._overriding = [*overriding, COMMAND_LINE.file]
    self.findings: list[Finding] = []
    self.macros: dict[str, Statement] = {}
    self.all_macros = [s for s in statements if s.is_macro]
    self.bound: list[Binding] = []
    self._table: dict[tuple[Part, str], dict[Scope, Statement]] = {}
    for statement in statements:
      if statement.is_macro:
        self._check_twice(self.macros.get(statement.macro_name), statement)
        self.macros[statement.macro_name] = statement
      elif binding := self._bind(statement):
        self.bound.append(binding)
    for binding in self.bound:
      self._insert(binding)

  def _check_twice(self, earlier: Statement | None, statement: Statement) -> None:
    """Reports a name that one file binds twice: the first value would be lost silently."""
    if earlier is not None and earlier.place.line and earlier.place.file == statement.place.file:
      self.error(
        statement.place,
        f'{statement.target} is bound twice: remove this binding or the one in line '
        f'{earlier.place.line}',
      )

  def _bind(self, statement: Statement) -> Binding | None:
    matches = self.registry.find(statement.name)
    part = self.part(statement.name)
    if len(matches) != 1:
      self.error(statement.named_at, self._name_problem(statement.name, statement.named_at))
    if part is None:
      return None
    if self._accepts(part, statement.param):
      return Binding(statement, part, statement.param, len(matches) != 1)
    guess = closest(statement.param, part.parameters)
    if len(matches) == 1:
      self.error(statement.place, _parameter_problem(statement, part))
    return Binding(statement, part, guess, True) if guess else None

  def _accepts(self, part: Part, param: str) -> bool:
    return part.open or (param in part.parameters and part.parameters[param].nameable)

  def _insert(self, binding: Binding) -> None:
    scopes = self._table.setdefault((binding.part, binding.param), {})
    scope = split_scope(binding.statement.scope)
    if binding.is_guess:
      scopes.setdefault(scope, binding.statement)
      return
    rank = self._rank(binding.statement)
    for other, statement in [*scopes.items()]:
      if other[: len(scope)] == scope and self._rank(statement) < rank:
        del scopes[other]
    self._check_twice(scopes.get(scope), binding.statement)
    scopes[scope] = binding.statement

  def _rank(self, statement: Statement) -> int:
    file = statement.place.file
    return self._overriding.index(file) + 1 if file in self._overriding else 0

  def error(self, place, message: str) -> None:
    """Adds a finding."""
    self.findings.append(Finding(place, message))

  def part(self, name: str) -> Part | None:
    """Returns the part of this name, else the part with the most similar name, else None."""
    matches = self.registry.find(name)
    if not matches:
      guess = closest(name, self.registry.names())
      matches = self.registry.find(guess) if guess else []
    return matches[0] if matches else None

  def exact_part(self, name: str) -> Part | None:
    """Returns the part of exactly this name; None if there is no such part or several."""
    matches = self.registry.find(name)
    return matches[0] if len(matches) == 1 else None

  def _name_problem(self, name: str, place: Place) -> str:
    if full := self.registry.full_names(name):
      return f"'{name}' is ambiguous: write {' or '.join(full)}"
    if module := module_defining(name, self._folders):
      file = place.file if place.line else 'the gin file'
      return f'{module}.py defines {name}: write `import {module}` in {file}'
    guess = did_you_mean(name, self.registry.names()) or '; `t2x parts` lists all'
    return f"no part named '{name}'{guess}"

  def reference_problem(self, name: str, place: Place) -> str | None:
    """Returns an error message if the name of a reference at a place is unknown or ambiguous."""
    return None if len(self.registry.find(name)) == 1 else self._name_problem(name, place)

  def lookup(self, part: Part, param: str, scope: Scope) -> Statement | None:
    """Returns the statement that sets a parameter of a part in `scope`, or None."""
    scopes = self._table.get((part, param), {})
    for length in range(len(scope), -1, -1):
      if scope[:length] in scopes:
        return scopes[scope[:length]]
    return None

  def bound_params(self, part: Part) -> list[str]:
    """Returns the parameters of a part that any statement binds, in the order of the signature."""
    names = {param for other, param in self._table if other is part}
    order = {name: i for i, name in enumerate(part.parameters)}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))

  def scopes_of(self, part: Part, param: str) -> list[Scope]:
    """Returns the scopes in which a parameter is bound."""
    return list(self._table.get((part, param), {}))

  def winner(self, binding: Binding) -> Statement | None:
    """Returns the statement that sets the parameter of a binding in exactly its scope; None if none does."""
    scope = split_scope(binding.statement.scope)
    return self._table.get((binding.part, binding.param), {}).get(scope)

  def winning(self) -> Iterator[Binding]:
    """Yields the bindings that no other statement overrides."""
    for binding in self.bound:
      if binding.statement in self._table[binding.part, binding.param].values():
        yield binding

  def macro(self, name: str) -> Statement | None:
    """Returns the definition of a macro, else that of the macro with the most similar name."""
    if name not in self.macros:
      name = closest(name, self.macros) or name
    return self.macros.get(name)


def _parameter_problem(statement: Statement, part: Part) -> str:
  parameter = part.parameters.get(statement.param)
  if parameter is not None:
    return f'{part.name}.{statement.param} is positional-only: configs cannot bind it'
  names = [name for name, parameter in part.parameters.items() if parameter.nameable]
  guess = did_you_mean(statement.param, names)
  choices = f'; it has {", ".join(names)}' if names else '; it has no parameters'
  return f"{part.name} has no parameter '{statement.param}'{guess or choices}"
