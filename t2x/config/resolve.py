"""Statements -> a tree of plain calls, without globals and without building anything.

`@Name` becomes `functools.partial(Name, **bindings)` (Name itself when nothing is bound), `@Name()`
the called object. A reference without a scope inherits the scope of the place it stands in, one with
a scope (`@encoder/Name`) sets it for everything beneath. What a macro builds (`@Name()`) is built
once, outside any scope, and shared by all its uses.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterator
from typing import Any

from t2x.config.bindings import Bindings, Scope, split_scope
from t2x.config.parse import Statement
from t2x.config.signature import GIVEN, MISSING, Parameter, Part
from t2x.config.type_check import convert
from t2x.config.values import Macro, Place, Reference, leaves, map_leaves
from t2x.errors import UserError
from t2x.hyperparameters import Hyperparameter


@dataclasses.dataclass(eq=False)
class Argument:
  """The value of a parameter: literals, containers, Calls. `statement` None: it is the default."""

  value: Any
  statement: Statement | None


@dataclasses.dataclass(eq=False)
class Call:
  """A part with its arguments; `evaluate` False is the factory, to be called by who holds it.

  `obj` is what is called: the part itself, or the `functools.partial` of it that was a default.
  `is_shared`: a macro builds the object, one for all uses.
  """

  part: Part
  obj: Any
  scope: Scope
  evaluate: bool
  place: Place
  arguments: dict[str, Argument]
  is_shared: bool = False

  @property
  def given(self) -> dict[str, Any]:
    """What each parameter gets, in the order of the signature: bindings, and the defaults of the others."""
    values = {name: parameter.default for name, parameter in self.part.parameters.items()}
    values |= {name: argument.value for name, argument in self.arguments.items()}
    return {name: value for name, value in values.items() if value is not MISSING}

  @property
  def bound(self) -> dict[str, Statement]:
    """The statements that bind its parameters."""
    return {name: a.statement for name, a in self.arguments.items() if a.statement is not None}

  @property
  def bare(self) -> bool:
    """A factory beneath which nothing is bound."""
    return not self.evaluate and all(
      a.statement is None and _is_bare(a.value) for a in self.arguments.values()
    )


def _is_bare(value: Any) -> bool:
  return all(leaf.bare for leaf in leaves(value) if isinstance(leaf, Call))


class Resolver:
  """Walks from the root over all that it references, noting what is used and what is missing.

  Attributes:
    visited: the scopes in which each part stands.
    default_objects: default values that are objects of parts, by class, with where they stand.
  """

  def __init__(self, bindings: Bindings, refused: set[Statement]):
    """`refused`: statements whose values do not fit; nothing more is said of what they hold."""
    self.bindings = bindings
    self.refused = refused
    self.visited: dict[Part, set[Scope]] = {}
    self.default_objects: dict[type, str] = {}
    self._calls: dict[Any, Call] = {}
    self._shared: dict[int, Call] = {}
    self._open: list[tuple[Part, Scope]] = []
    self._open_macros: list[Statement] = []

  def value(self, value: Any, scope: Scope, place: Place, holder: str, in_macro: str = '') -> Any:
    """A parsed value as literals, containers and Calls."""

    def one(leaf):
      if isinstance(leaf, Macro):
        return self._macro(leaf.name, scope, holder)
      if not isinstance(leaf, Reference):
        return leaf
      part = self.bindings.part(leaf.name)
      if part is None:
        return None
      inner = split_scope(leaf.scope) or (() if in_macro and leaf.evaluate else scope)
      if not (in_macro and leaf.evaluate):
        return self.call(part, part.obj, inner, leaf.evaluate, place, holder)
      if id(leaf) not in self._shared:
        call = self.call(part, part.obj, inner, True, place, f'%{in_macro}')
        self._shared[id(leaf)] = dataclasses.replace(call, is_shared=True)
      return self._shared[id(leaf)]

    return map_leaves(one, value)

  def _macro(self, name: str, scope: Scope, holder: str) -> Any:
    statement = self.bindings.macro(name)
    if statement is None or statement in self._open_macros:
      return None
    self._open_macros.append(statement)
    told = _muted(self.bindings) if statement in self.refused else contextlib.nullcontext()
    with told:
      value = self.value(statement.value, scope, statement.place, holder, statement.macro_name)
    self._open_macros.pop()
    return value

  def call(
    self,
    part: Part,
    obj: Any,
    scope: Scope,
    evaluate: bool,
    place: Place,
    holder: str,
  ) -> Call:
    """The call of a part in a scope; `holder` names the parameter that references it."""
    key = (part, id(obj), scope, evaluate)
    call = Call(part, obj, scope, evaluate, place, {})
    if (part, scope) in self._open:
      chain = [p.name for p, _ in self._open[self._open.index((part, scope)) :]]
      self.bindings.error(place, f'{part.name} holds itself: {" -> ".join([*chain, part.name])}')
      return call
    if key in self._calls:
      return self._calls[key]
    self._calls[key] = call
    self._open.append((part, scope))
    self.visited.setdefault(part, set()).add(scope)
    for name in dict.fromkeys([*part.parameters, *self.bindings.bound_params(part)]):
      argument = self._argument(part, name, scope, call)
      if argument is not None:
        call.arguments[name] = argument
    self._open.pop()
    self._check_given(call, holder)
    return call

  def _argument(self, part: Part, name: str, scope: Scope, call: Call) -> Argument | None:
    parameter = part.parameters.get(name)
    holder = f'{part.name}.{name}'
    statement = self.bindings.lookup(part, name, scope)
    if statement is None:
      return self._default(parameter, scope, call, holder) if parameter else None
    place = statement.place
    if statement in self.refused:
      # It still counts as used, and so does what it names.
      with _muted(self.bindings):
        return Argument(self.value(statement.value, scope, place, holder), statement)
    value = self.value(statement.value, scope, place, holder)
    if not call.evaluate and part.given_by_builder(name):
      self.bindings.error(
        place, f'{holder} is given by the part that builds it: remove this binding'
      )
    return Argument(convert(value, parameter.hint) if parameter else value, statement)

  def _default(self, parameter: Parameter, scope: Scope, call: Call, holder: str):
    """A default that is a factory takes bindings as if it were written in the config."""
    registry = self.bindings.registry

    def one(leaf):
      inner = leaf.func if isinstance(leaf, functools.partial) else leaf
      part = registry.part_of(inner)
      if part is None:
        if registry.part_of(type(leaf)) is not None:
          self.default_objects.setdefault(type(leaf), holder)
        return leaf
      if (part, scope) in self._open:
        return leaf
      return self.call(part, leaf, scope, False, call.place, f'the default of {holder}')

    value = map_leaves(one, parameter.default)
    is_factory = any(isinstance(leaf, Call) for leaf in leaves(value))
    return Argument(value, None) if is_factory else None

  def _check_given(self, call: Call, holder: str) -> None:
    """Everything that only config can give must be bound."""
    if not self.bindings.complete:
      return
    part = call.part
    preset = call.obj.keywords if isinstance(call.obj, functools.partial) else {}
    missing = [
      p.name
      for p in part.parameters.values()
      if p.required
      and p.name not in call.arguments
      and p.name not in preset
      and (call.evaluate or not (p.positional or p.name in GIVEN))
    ]
    if call.evaluate and not GIVEN.isdisjoint(missing):
      self.bindings.error(
        call.place,
        f'{part.name} is built by the part that holds it: write @{part.name}, not @{part.name}()',
      )
      return
    scope = ''.join(f'{name}/' for name in call.scope)
    for name in missing:
      bound = [f'{"/".join(s)}/{part.name}' for s in self.bindings.scopes_of(part, name)]
      elsewhere = f'; it is bound only for {", ".join(bound)}' if bound else ''
      self.bindings.error(
        call.place,
        f'{scope}{part.name} needs {name}: write {part.name}.{name} = ... '
        f'({part.name} is {holder}){elsewhere}',
      )


@contextlib.contextmanager
def _muted(bindings: Bindings) -> Iterator[None]:
  """Drops the findings inside: their cause has been reported."""
  count = len(bindings.findings)
  yield
  del bindings.findings[count:]


def calls(value: Any) -> Iterator[Call]:
  """All calls beneath a resolved value, each once, outermost first."""
  seen: set[int] = set()

  def walk(value):
    for leaf in leaves(value):
      if isinstance(leaf, Call) and id(leaf) not in seen:
        seen.add(id(leaf))
        yield leaf
        for argument in leaf.arguments.values():
          yield from walk(argument.value)

  yield from walk(value)


def build(value: Any, hyperparameters: Collection[str] = ()) -> Any:
  """Makes the objects of a resolved value.

  Args:
    value: literals, containers and Calls.
    hyperparameters: parameters that get a `Hyperparameter` instead, by `key_of`.

  Raises:
    UserError: with its place, for what a part refuses.
  """
  made: dict[int, Any] = {}

  def one(leaf):
    if not isinstance(leaf, Call):
      return leaf
    if not leaf.is_shared:
      return made_of(leaf)
    if id(leaf) not in made:
      made[id(leaf)] = made_of(leaf)
    return made[id(leaf)]

  def made_of(leaf):
    given = {
      name: map_leaves(one, argument.value)
      for name, argument in leaf.arguments.items()
      if not (argument.statement is None and _is_bare(argument.value))
    }
    for name in leaf.part.parameters if hyperparameters else ():
      if (key := key_of(leaf, name)) in hyperparameters:
        given[name] = Hyperparameter(key)
    if not leaf.evaluate:
      return functools.partial(leaf.obj, **given) if given else leaf.obj
    try:
      return leaf.obj(**given)
    except (UserError, ValueError) as error:
      message = f'{leaf.place}: {leaf.part.name}: {error}'
      raise UserError(message, getattr(error, 'exit_code', 2)) from error

  return map_leaves(one, value)


def key_of(call: Call, param: str) -> str:
  """'scope/Name.param', the name of what a parameter of a part in its place is given."""
  return '/'.join((*call.scope, f'{call.part.name}.{param}'))
