"""Checks that need no objects: values against annotations, and bindings that nothing uses."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from t2x.config.bindings import Bindings, Bound, closest, did_you_mean, split_scope
from t2x.config.parse import Statement, expanded
from t2x.config.registry import Registry
from t2x.config.resolve import Resolver
from t2x.config.signature import GIVEN
from t2x.config.type_check import problem
from t2x.config.type_names import takes_parts
from t2x.config.values import Macro, Reference, leaves


def check_values(bindings: Bindings) -> set[Statement]:
  """Notes unknown references, bad macros and wrong types; returns the statements that hold them."""
  circular = _check_circles(bindings)
  refused = set(circular)
  for statement in bindings.macros.values():
    if _check_leaves(bindings, statement):
      refused.add(statement)
  for bound in bindings.winning():
    statement = bound.statement
    if _check_leaves(bindings, statement):
      refused.add(statement)
    elif not bound.meant and (message := _type_problem(bindings, bound)):
      bindings.error(statement.place, message)
      refused.add(statement)
  return refused


def binds_parts(bindings: Bindings, statement: Statement) -> bool:
  """Whether the parameter that a statement binds takes parts."""
  parameter = next(
    (b.part.parameters.get(b.param) for b in bindings.bound if b.statement is statement), None
  )
  return parameter is not None and takes_parts(parameter.hint)


def _check_leaves(bindings: Bindings, statement: Statement) -> bool:
  """Notes names that a value uses and nobody defines."""
  bad = False
  for leaf in leaves(statement.value):
    message = None
    if isinstance(leaf, Reference):
      message = bindings.reference_problem(leaf.name)
    elif isinstance(leaf, Macro) and leaf.name not in bindings.macros:
      bad = True
      # A file that could not be read may hold the definition.
      if bindings.complete:
        guess = did_you_mean(leaf.name, bindings.macros, '%{}')
        message = f'macro %{leaf.name} is not defined{guess}'
    if message:
      bindings.error(statement.place, message)
      bad = True
  return bad


def _check_circles(bindings: Bindings) -> set[Statement]:
  """Notes each circle of macros once; returns the definitions that lie on one."""
  circular: set[Statement] = set()
  for name in bindings.macros:
    circle = _circle(bindings, name)
    members = {bindings.macros[one] for one in circle}
    if circle and circular.isdisjoint(members):
      first = bindings.macros[name]
      bindings.error(first.place, f'macro %{name} holds itself: {" -> ".join([*circle, name])}')
    circular |= members
  return circular


def _circle(bindings: Bindings, start: str) -> list[str]:
  """The macros on the shortest way from a macro back to itself; none when there is no way."""
  ways, seen = [[start]], set()
  for way in ways:
    for leaf in leaves(bindings.macros[way[-1]].value):
      if not isinstance(leaf, Macro) or leaf.name not in bindings.macros:
        continue
      if leaf.name == start:
        return way
      if leaf.name not in seen:
        seen.add(leaf.name)
        ways.append([*way, leaf.name])
  return []


def _type_problem(bindings: Bindings, bound: Bound) -> str | None:
  parameter = bound.part.parameters.get(bound.param)
  statement = bound.statement
  if parameter is None or bound.param in GIVEN:
    return None
  value = expanded(statement.value, bindings.macros)
  is_unknown = any(isinstance(leaf, Macro) for leaf in leaves(value))
  if is_unknown or (value is None and parameter.default is None):
    return None
  found = problem(value, parameter.hint, bindings.known_part)
  if found is None:
    return None
  macros = [leaf for leaf in leaves(statement.value) if isinstance(leaf, Macro)]
  via = ', '.join(f'{macro} is from {bindings.macros[macro.name].place}' for macro in macros)
  return f'{bound.part.name}.{bound.param} {found}' + (f' ({via})' if via else '')


def check_unused(
  bindings: Bindings,
  resolver: Resolver,
  root: Any,
  root_name: str,
  excused: Callable[[Statement], bool] = lambda _: False,
) -> None:
  """Notes every statement that nothing on the way from the root uses and that is not `excused`."""
  for bound in bindings.bound:
    if bound.meant or _stands(resolver, bound) or excused(bound.statement):
      continue
    bindings.error(bound.statement.place, _unused_problem(resolver, bound, root_name))
  used = _used_macros(bindings, root)
  for statement in bindings.all_macros:
    if statement.macro_name not in used and not excused(statement):
      bindings.error(statement.place, _unused_macro(bindings, resolver, statement))


def used_before(
  registry: Registry, statements: Sequence[Statement], root: Any
) -> Iterator[Statement]:
  """The statements that some file, with all that was read before its end, uses.

  A later file or the command line may replace the parts that they set.
  """
  ends = [
    i for i in range(1, len(statements)) if statements[i].place.file != statements[i - 1].place.file
  ]
  for end in ends:
    bindings = Bindings(registry, statements[:end], complete=False)
    resolver = Resolver(bindings, set())
    resolver.value(root, (), statements[0].place, 'the root')
    yield from (bound.statement for bound in bindings.bound if _stands(resolver, bound))


def _stands(resolver: Resolver, bound: Bound) -> bool:
  """Whether the part that a statement binds was met in its scope."""
  scope = split_scope(bound.statement.scope)
  return any(one[: len(scope)] == scope for one in resolver.visited.get(bound.part, ()))


def _unused_problem(resolver: Resolver, bound: Bound, root_name: str) -> str:
  statement, part = bound.statement, bound.part
  stands = resolver.visited.get(part, set())
  what = f'nothing uses {statement.target}: '
  if not stands:
    note = f'{part.name} is not on the path from {root_name}'
    if part.obj in resolver.default_objects:
      holder = resolver.default_objects[part.obj]
      note += f'; {holder} has a default object of it: bind {holder} = @{part.name}()'
    return what + note
  known = {'/'.join(one) for scopes in resolver.visited.values() for one in scopes if one}
  guess = did_you_mean(statement.scope, known)
  return f"{what}no {part.name} stands in scope '{statement.scope}'{guess}"


def _used_macros(bindings: Bindings, root: Any) -> set[str]:
  """Macros that any binding names, also by way of other macros."""
  used: set[str] = set()
  definitions: dict[str, list[Any]] = {}
  for statement in bindings.all_macros:
    definitions.setdefault(statement.macro_name, []).append(statement.value)

  def mark(value):
    for leaf in leaves(value):
      if not isinstance(leaf, Macro):
        continue
      name = leaf.name
      if name not in bindings.macros:
        # An undefined macro is an error already; the one that was meant is no second error.
        name = closest(name, bindings.macros) or name
      if name not in used:
        used.add(name)
        for value in definitions.get(name, ()):
          mark(value)

  mark(root)
  for bound in bindings.bound:
    mark(bound.statement.value)
  return used


def _unused_macro(bindings: Bindings, resolver: Resolver, statement: Statement) -> str:
  name = statement.macro_name
  for part in resolver.visited:
    if name in part.parameters and part.parameters[name].nameable:
      return f'nothing uses macro %{name}; did you mean {part.name}.{name}?'
  if bindings.registry.find(name):
    return f'nothing uses macro %{name}; to bind a parameter write {name}.param = value'
  return f'nothing uses macro %{name}{did_you_mean(name, _named_macros(bindings), "%{}")}'


def _named_macros(bindings: Bindings) -> Iterable[str]:
  for bound in bindings.bound:
    for leaf in leaves(bound.statement.value):
      if isinstance(leaf, Macro):
        yield leaf.name
