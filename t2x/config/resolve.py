"""Resolves statements to a tree of plain calls, without global state and without building anything.

`@Name` becomes `functools.partial(Name, **bindings)`, or Name if nothing is bound. `@Name()` becomes the
object that it returns. A reference without a scope inherits the scope of the part that contains it; one with
a scope (`@encoder/Name`) sets the scope of itself and of all parts below, as in gin; inside another scope it is refused
if a binding of that scope would no longer apply (`@decoder/first/Name` keeps both). An object in a macro is built once,
outside any scope, and shared by all uses of the macro.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Hyperparameter
from t2x.config.bindings import Bindings, Scope, split_scope
from t2x.config.parse import Statement
from t2x.config.signature import BUILDER_ARGUMENTS, MISSING, Parameter, Part
from t2x.config.type_check import convert
from t2x.config.values import Macro, Place, Reference, leaves, map_leaves

__all__ = ['calls', 'key_of']


@dataclasses.dataclass(eq=False)
class Argument:
  """The resolved value of a parameter. `statement` is None for a default."""

  value: object
  statement: Statement | None


@dataclasses.dataclass(eq=False)
class PartCall:
  """A part with its arguments.

  Attributes:
    part: the part.
    obj: the callable: the part's, or a `functools.partial` of it from a default.
    scope: the scope in which its bindings are looked up.
    evaluate: True for an object (`@Name()`), False for a factory (`@Name`).
    place: file and line of the reference.
    arguments: the bound arguments, and defaults that contain factories.
    is_shared: whether a macro builds the object, once for all uses.
  """

  part: Part
  obj: Callable[..., Any]
  scope: Scope
  evaluate: bool
  place: Place
  arguments: dict[str, Argument]
  is_shared: bool = False

  @property
  def values(self) -> dict[str, Any]:
    """Bound and default values by parameter, in the order of the signature."""
    values = {name: parameter.default for name, parameter in self.part.parameters.items()}
    values |= {name: argument.value for name, argument in self.arguments.items()}
    return {name: value for name, value in values.items() if value is not MISSING}

  @property
  def bound(self) -> dict[str, Statement]:
    """The statements that bind its parameters, by parameter."""
    return {name: a.statement for name, a in self.arguments.items() if a.statement is not None}

  @property
  def is_unbound(self) -> bool:
    """Whether it is a factory without bindings, including those of the parts below."""
    return not self.evaluate and all(
      a.statement is None and _is_unbound(a.value) for a in self.arguments.values()
    )


def _is_unbound(value: object) -> bool:
  return all(leaf.is_unbound for leaf in leaves(value) if isinstance(leaf, PartCall))


class Resolver:
  """Resolves all parts that are reachable from the root, and reports missing values.

  Args:
    bindings: the table of bindings.
    refused: statements with invalid values, for which no further errors are reported.

  Attributes:
    visited: the scopes in which each part is used.
    default_objects: for each class of a default object, the parameter with this default.
  """

  def __init__(self, bindings: Bindings, refused: set[Statement]):
    self.bindings = bindings
    self.refused = refused
    self.visited: dict[Part, set[Scope]] = {}
    self.default_objects: dict[type, str] = {}
    self._calls: dict[Any, PartCall] = {}
    self._shared: dict[int, PartCall] = {}
    self._stack: list[tuple[Part, Scope]] = []
    self._macro_stack: list[Statement] = []
    # Scopes that references left, with the reference.
    self._left: list[tuple[Scope, str]] = []

  def value(self, value: object, scope: Scope, place: Place, user: str, in_macro: str = '') -> Any:
    """Resolves a parsed value to literals, containers and Calls.

    Args:
      value: the parsed value.
      scope: the scope of the part that contains it.
      place: file and line.
      user: the parameter that has this value, for error messages.
      in_macro: name of the macro that has this value, or ''.
    """

    def resolve(leaf):
      if isinstance(leaf, Macro):
        return self._macro(leaf.name, scope, user)
      if not isinstance(leaf, Reference):
        return leaf
      part = self.bindings.part(leaf.name)
      if part is None:
        return None
      inner = split_scope(leaf.scope) or (() if in_macro and leaf.evaluate else scope)
      if not (in_macro and leaf.evaluate):
        leaves_scope = inner[: len(scope)] != scope
        self._left += [(scope, f'{leaf.scope}/{leaf.name}')] * leaves_scope
        call = self.call(part, part.obj, inner, leaf.evaluate, place, user)
        del self._left[len(self._left) - leaves_scope :]
        return call
      if id(leaf) not in self._shared:
        call = self.call(part, part.obj, inner, True, place, f'%{in_macro}')
        self._shared[id(leaf)] = dataclasses.replace(call, is_shared=True)
      return self._shared[id(leaf)]

    return map_leaves(resolve, value)

  def _macro(self, name: str, scope: Scope, user: str) -> Any:
    statement = self.bindings.macro(name)
    if statement is None or statement in self._macro_stack:
      return None
    self._macro_stack.append(statement)
    context = (
      _drop_findings(self.bindings) if statement in self.refused else contextlib.nullcontext()
    )
    with context:
      value = self.value(statement.value, scope, statement.place, user, statement.macro_name)
    self._macro_stack.pop()
    return value

  def call(
    self,
    part: Part,
    obj: Callable[..., Any],
    scope: Scope,
    evaluate: bool,
    place: Place,
    user: str,
  ) -> PartCall:
    """Resolves the call of a part in a scope; `user` is the parameter that references the part."""
    key = (part, id(obj), scope, evaluate)
    call = PartCall(part, obj, scope, evaluate, place, {})
    if (part, scope) in self._stack:
      chain = [p.name for p, _ in self._stack[self._stack.index((part, scope)) :]]
      self.bindings.error(place, f'{part.name} contains itself: {" -> ".join([*chain, part.name])}')
      return call
    if key in self._calls:
      return self._calls[key]
    self._calls[key] = call
    self._stack.append((part, scope))
    self.visited.setdefault(part, set()).add(scope)
    for name in dict.fromkeys([*part.parameters, *self.bindings.bound_params(part)]):
      argument = self._argument(part, name, scope, call)
      if argument is not None:
        call.arguments[name] = argument
    self._stack.pop()
    self._check_required(call, user)
    return call

  def _argument(self, part: Part, name: str, scope: Scope, call: PartCall) -> Argument | None:
    parameter = part.parameters.get(name)
    target = f'{part.name}.{name}'
    statement = self.bindings.lookup(part, name, scope)
    if statement is None or not statement.scope:
      self._check_left(part, name, call.place)
    if statement is None:
      return self._default(parameter, scope, call, target) if parameter else None
    place = statement.place
    if statement in self.refused:
      # The statement and the parts that it references still count as used.
      with _drop_findings(self.bindings):
        return Argument(self.value(statement.value, scope, place, target), statement)
    value = self.value(statement.value, scope, place, target)
    if not call.evaluate and part.is_builder_argument(name):
      message = f'{target} is set by the part that contains {part.name}: remove this binding'
      if name not in BUILDER_ARGUMENTS:
        message += '; a setting of a part of your own stands after `*` in the arguments of __init__'
      self.bindings.error(place, message)
    if parameter is None:
      return Argument(value, statement)
    return Argument(convert(value, parameter.hint), statement)

  def _check_left(self, part: Part, name: str, place: Place) -> None:
    """Reports a reference that leaves a scope with a binding of this parameter, which would not apply."""
    for scope, reference in self._left:
      lost = self.bindings.lookup(part, name, scope)
      if lost is not None and lost.scope:
        within = f'{"/".join(scope)}/{reference}'
        self.bindings.error(
          place,
          f'@{reference} leaves the scope {"/".join(scope)}, so {lost.target} ({lost.place}) would not apply to it: '
          f'write @{within}, also in bindings of its scope',
        )

  def _default(self, parameter: Parameter, scope: Scope, call: PartCall, target: str):
    """Resolves a default that contains factories, to which bindings apply as in a config."""
    registry = self.bindings.registry

    def resolve(leaf):
      inner = leaf.func if isinstance(leaf, functools.partial) else leaf
      part = registry.part_of(inner)
      if part is None:
        if registry.part_of(type(leaf)) is not None:
          self.default_objects.setdefault(type(leaf), target)
        return leaf
      if (part, scope) in self._stack:
        return leaf
      return self.call(part, leaf, scope, False, call.place, f'the default of {target}')

    value = map_leaves(resolve, parameter.default)
    is_factory = any(isinstance(leaf, PartCall) for leaf in leaves(value))
    return Argument(value, None) if is_factory else None

  def _check_required(self, call: PartCall, user: str) -> None:
    """Reports required parameters without a value, except parameters that the enclosing part passes."""
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
      and (call.evaluate or not (p.positional or p.name in BUILDER_ARGUMENTS))
    ]
    if call.evaluate and not BUILDER_ARGUMENTS.isdisjoint(missing):
      self.bindings.error(
        call.place,
        f'{part.name} must be built by the part that contains it: write @{part.name}, not '
        f'@{part.name}()',
      )
      return
    scope = ''.join(f'{name}/' for name in call.scope)
    for name in missing:
      bound = [f'{"/".join(s)}/{part.name}' for s in self.bindings.scopes_of(part, name)]
      elsewhere = f'; it is bound only for {", ".join(bound)}' if bound else ''
      self.bindings.error(
        call.place,
        f'{scope}{part.name} needs a value for {name}: write {part.name}.{name} = ... '
        f'({part.name} is {user}){elsewhere}',
      )


@contextlib.contextmanager
def _drop_findings(bindings: Bindings) -> Iterator[None]:
  """Drops the findings inside the context, whose cause is already reported."""
  count = len(bindings.findings)
  yield
  del bindings.findings[count:]


def calls(value: object) -> Iterator[PartCall]:
  """Yields all calls in a resolved value, each once, outermost first."""
  visited: set[int] = set()

  def walk(value):
    for leaf in leaves(value):
      if isinstance(leaf, PartCall) and id(leaf) not in visited:
        visited.add(id(leaf))
        yield leaf
        for argument in leaf.arguments.values():
          yield from walk(argument.value)

  yield from walk(value)


def build(value: object, hyperparameters: Collection[str] = ()) -> Any:
  """Builds the objects of a resolved value.

  Args:
    value: literals, containers and Calls.
    hyperparameters: parameters that get a `Hyperparameter` instead of their value, by `key_of`.

  Raises:
    UserError: a part raises UserError or ValueError; the message gets file and line.
  """
  shared: dict[int, Any] = {}

  def build_leaf(leaf):
    if not isinstance(leaf, PartCall):
      return leaf
    if not leaf.is_shared:
      return build_call(leaf)
    if id(leaf) not in shared:
      shared[id(leaf)] = build_call(leaf)
    return shared[id(leaf)]

  def build_call(leaf):
    arguments = {
      name: map_leaves(build_leaf, argument.value)
      for name, argument in leaf.arguments.items()
      if not (argument.statement is None and _is_unbound(argument.value))
    }
    for name in leaf.part.parameters if hyperparameters else ():
      if (key := key_of(leaf, name)) in hyperparameters:
        arguments[name] = Hyperparameter(key)
    if not leaf.evaluate:
      return functools.partial(leaf.obj, **arguments) if arguments else leaf.obj
    try:
      return leaf.obj(**arguments)
    except (UserError, ValueError) as error:
      message = f'{leaf.place}: {leaf.part.name}: {error}'
      raise UserError(message, getattr(error, 'exit_code', 2)) from error

  return map_leaves(build_leaf, value)


def key_of(call: PartCall, param: str) -> str:
  """Returns 'scope/Name.param' for a parameter of a call."""
  return '/'.join((*call.scope, f'{call.part.name}.{param}'))
