"""Which binding wins: names are looked up, the command line beats files, later beats earlier, and
within a part the longest scope that is a prefix of the place beats shorter ones."""

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence

from t2x.config.parse import Statement
from t2x.config.registry import Registry
from t2x.config.signature import Part
from t2x.config.values import COMMAND_LINE, Finding

Scope = tuple[str, ...]


def split_scope(scope: str) -> Scope:
  """'a/b' -> ('a', 'b')."""
  return tuple(scope.split('/')) if scope else ()


def closest(name: str, names: Iterable[str]) -> str | None:
  """The known name that was probably meant."""
  known = list(dict.fromkeys(names))
  exact = [one for one in known if one.lower() == name.lower() and one != name]
  found = exact or difflib.get_close_matches(name, known, 1, 0.6)
  return found[0] if found else None


def did_you_mean(name: str, names: Iterable[str], form: str = "'{}'") -> str:
  """'; did you mean ...?', or nothing."""
  guess = closest(name, names)
  return f'; did you mean {form.format(guess)}?' if guess else ''


@dataclasses.dataclass(frozen=True)
class Bound:
  """A statement whose part and parameter are known. `meant`: only guessed from a misspelt name."""

  statement: Statement
  part: Part
  param: str
  meant: bool


class Bindings:
  """The statements of a config, looked up in a registry.

  Names that are unknown become findings; resolution then goes on with the name that was probably
  meant, so that one misspelling is told once.
  """

  def __init__(self, registry: Registry, statements: Sequence[Statement], *, complete: bool):
    self.registry = registry
    self.complete = complete
    self.findings: list[Finding] = []
    self.macros: dict[str, Statement] = {}
    self.all_macros = [s for s in statements if s.is_macro]
    self.bound: list[Bound] = []
    self._table: dict[tuple[Part, str], dict[Scope, Statement]] = {}
    for statement in statements:
      if statement.is_macro:
        self._check_twice(self.macros.get(statement.macro_name), statement)
        self.macros[statement.macro_name] = statement
      elif bound := self._bind(statement):
        self.bound.append(bound)
    for bound in self.bound:
      self._enter(bound)

  def _check_twice(self, earlier: Statement | None, statement: Statement) -> None:
    """Notes a name that one file binds twice: the first value would be lost without a word."""
    if earlier is not None and earlier.place.line and earlier.place.file == statement.place.file:
      self.error(
        statement.place,
        f'{statement.target} is bound twice: line {earlier.place.line} binds it too',
      )

  def _bind(self, statement: Statement) -> Bound | None:
    found = self.registry.find(statement.name)
    part = self.part(statement.name)
    if len(found) != 1:
      self.error(statement.named_at, self._name_problem(statement.name))
    if part is None:
      return None
    if self._takes(part, statement.param):
      return Bound(statement, part, statement.param, len(found) != 1)
    guess = closest(statement.param, part.parameters)
    if len(found) == 1:
      self.error(statement.place, _parameter_problem(statement, part))
    return Bound(statement, part, guess, True) if guess else None

  def _takes(self, part: Part, param: str) -> bool:
    return part.open or (param in part.parameters and part.parameters[param].nameable)

  def _enter(self, bound: Bound) -> None:
    scopes = self._table.setdefault((bound.part, bound.param), {})
    scope = split_scope(bound.statement.scope)
    if bound.meant:
      scopes.setdefault(scope, bound.statement)
      return
    if bound.statement.place == COMMAND_LINE:
      beaten = [
        other
        for other, statement in scopes.items()
        if other[: len(scope)] == scope and statement.place != COMMAND_LINE
      ]
      for other in beaten:
        del scopes[other]
    self._check_twice(scopes.get(scope), bound.statement)
    scopes[scope] = bound.statement

  def error(self, place, message: str) -> None:
    """Notes a finding."""
    self.findings.append(Finding(place, message))

  def part(self, name: str) -> Part | None:
    """The part that a name means, or probably meant."""
    found = self.registry.find(name)
    if not found:
      guess = closest(name, self.registry.names())
      found = self.registry.find(guess) if guess else []
    return found[0] if found else None

  def known_part(self, name: str) -> Part | None:
    """The one part of exactly this name."""
    found = self.registry.find(name)
    return found[0] if len(found) == 1 else None

  def _name_problem(self, name: str) -> str:
    if full := self.registry.full_names(name):
      return f"'{name}' is in several modules: write {' or '.join(full)}"
    return f"no part named '{name}'{did_you_mean(name, self.registry.names())}"

  def reference_problem(self, name: str) -> str | None:
    """What is wrong with the name of a reference."""
    return None if len(self.registry.find(name)) == 1 else self._name_problem(name)

  def lookup(self, part: Part, param: str, scope: Scope) -> Statement | None:
    """The winning statement for a parameter of a part that stands in `scope`."""
    scopes = self._table.get((part, param), {})
    for length in range(len(scope), -1, -1):
      if scope[:length] in scopes:
        return scopes[scope[:length]]
    return None

  def bound_params(self, part: Part) -> list[str]:
    """The parameters of a part that any statement binds, in the order of the signature."""
    names = {param for other, param in self._table if other is part}
    order = {name: i for i, name in enumerate(part.parameters)}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))

  def scopes_of(self, part: Part, param: str) -> list[Scope]:
    """The scopes in which a parameter is bound."""
    return list(self._table.get((part, param), {}))

  def winning(self) -> Iterator[Bound]:
    """Every statement that no other statement replaces."""
    for bound in self.bound:
      if bound.statement in self._table[bound.part, bound.param].values():
        yield bound

  def macro(self, name: str) -> Statement | None:
    """The definition of a macro, or of the one that was probably meant."""
    if name not in self.macros:
      name = closest(name, self.macros) or name
    return self.macros.get(name)


def _parameter_problem(statement: Statement, part: Part) -> str:
  parameter = part.parameters.get(statement.param)
  if parameter is not None:
    return f'{part.name}.{statement.param} is given by position: no config can bind it'
  known = [name for name, parameter in part.parameters.items() if parameter.nameable]
  guess = did_you_mean(statement.param, known)
  listed = f'; it has {", ".join(known)}' if known else '; it has none'
  return f"{part.name} has no parameter '{statement.param}'{guess or listed}"
