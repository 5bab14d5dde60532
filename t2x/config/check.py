"""Checks values against annotations and finds unused bindings, without building objects."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from t2x.base.suggestions import closest, did_you_mean
from t2x.config.bindings import Binding, Bindings, split_scope
from t2x.config.parse import Statement, expanded
from t2x.config.registries import Registry
from t2x.config.resolve import PartCall, Resolver, calls
from t2x.config.signature import BUILDER_ARGUMENTS
from t2x.config.type_check import problem
from t2x.config.type_names import takes_parts
from t2x.config.values import Macro, Reference, leaves


def check_values(bindings: Bindings) -> set[Statement]:
  """Reports unknown references, invalid macros and wrong types; returns the invalid statements."""
  circular = _check_cycles(bindings)
  refused = set(circular)
  for statement in bindings.macros.values():
    if _check_leaves(bindings, statement):
      refused.add(statement)
  for binding in bindings.winning():
    statement = binding.statement
    if _check_leaves(bindings, statement):
      refused.add(statement)
    elif not binding.is_guess and (message := _type_problem(bindings, binding)):
      bindings.error(statement.place, message)
      refused.add(statement)
  return refused


def binds_parts(bindings: Bindings, statement: Statement) -> bool:
  """Returns whether the parameter that a statement binds accepts parts."""
  parameter = next(
    (b.part.parameters.get(b.param) for b in bindings.bound if b.statement is statement), None
  )
  return parameter is not None and takes_parts(parameter.hint)


def _check_leaves(bindings: Bindings, statement: Statement) -> bool:
  """Reports undefined names in a value; returns whether there are any."""
  is_invalid = False
  for leaf in leaves(statement.value):
    message = None
    if isinstance(leaf, Reference):
      message = bindings.reference_problem(leaf.name, statement.place)
    elif isinstance(leaf, Macro) and leaf.name not in bindings.macros:
      is_invalid = True
      # The definition may be in a file that could not be read.
      if bindings.complete:
        guess = did_you_mean(leaf.name, bindings.macros, '%{}')
        message = f'macro %{leaf.name} is not defined{guess}'
    if message:
      bindings.error(statement.place, message)
      is_invalid = True
  return is_invalid


def _check_cycles(bindings: Bindings) -> set[Statement]:
  """Reports each cycle of macros once; returns the definitions in cycles."""
  circular: set[Statement] = set()
  for name in bindings.macros:
    cycle = _find_cycle(bindings, name)
    members = {bindings.macros[member] for member in cycle}
    if cycle and circular.isdisjoint(members):
      first = bindings.macros[name]
      bindings.error(first.place, f'macro %{name} refers to itself: {" -> ".join([*cycle, name])}')
    circular |= members
  return circular


def _find_cycle(bindings: Bindings, start: str) -> list[str]:
  """Returns the shortest path of macros from `start` back to itself, [] if there is none."""
  paths, visited = [[start]], set()
  for path in paths:
    for leaf in leaves(bindings.macros[path[-1]].value):
      if not isinstance(leaf, Macro) or leaf.name not in bindings.macros:
        continue
      if leaf.name == start:
        return path
      if leaf.name not in visited:
        visited.add(leaf.name)
        paths.append([*path, leaf.name])
  return []


def _type_problem(bindings: Bindings, binding: Binding) -> str | None:
  parameter = binding.part.parameters.get(binding.param)
  statement = binding.statement
  if parameter is None or binding.param in BUILDER_ARGUMENTS:
    return None
  value = expanded(statement.value, bindings.macros)
  is_unknown = any(isinstance(leaf, Macro) for leaf in leaves(value))
  if is_unknown or (value is None and parameter.default is None):
    return None
  message = problem(value, parameter.hint, bindings.exact_part)
  if message is None:
    return None
  macros = [leaf for leaf in leaves(statement.value) if isinstance(leaf, Macro)]
  via = ', '.join(f'{macro} is from {bindings.macros[macro.name].place}' for macro in macros)
  return f'{binding.part.name}.{binding.param} {message}' + (f' ({via})' if via else '')


def check_unused(
  bindings: Bindings,
  resolver: Resolver,
  root: PartCall,
  root_name: str,
  is_exempt: Callable[[Statement], bool] = lambda _: False,
  allow_overridden: bool = False,
) -> None:
  """Reports statements that no part reachable from the root uses, except for exempt ones.

  With `allow_overridden`, bindings that scoped ones override in every use count as used.
  """
  for binding in bindings.bound:
    if binding.is_guess or _is_used(resolver, binding, allow_overridden):
      continue
    if is_exempt(binding.statement):
      continue
    bindings.error(binding.statement.place, _unused_problem(resolver, binding, root_name))
  used = _used_macros(bindings, root)
  for statement in bindings.all_macros:
    if statement.macro_name not in used and not is_exempt(statement):
      bindings.error(statement.place, _unused_macro(bindings, resolver, statement))


def used_before(
  registry: Registry, statements: Sequence[Statement], root: PartCall
) -> Iterator[Statement]:
  """Yields the statements that would be used if reading had stopped at the end of some file.

  A later file or the command line may replace the parts that they bind.
  """
  ends = [
    i for i in range(1, len(statements)) if statements[i].place.file != statements[i - 1].place.file
  ]
  for end in ends:
    bindings = Bindings(registry, statements[:end], complete=False)
    resolver = Resolver(bindings, set())
    resolver.value(root, (), statements[0].place, 'the root')
    yield from (binding.statement for binding in bindings.bound if _is_used(resolver, binding))


def inherited_positions(root: object) -> Iterator[str]:
  """Yields a note for each unscoped position encoding that several bodies get, in different scopes.

  A second encoder, such as that of a tower, may have been meant to have another one.
  """
  users: dict[Statement, list[str]] = {}
  for call in calls(root):
    for name, statement in call.bound.items():
      parameter = call.part.parameters.get(name)
      is_position = parameter is not None and 'PositionEncoding' in str(parameter.hint)
      is_body = any(i.__name__ == 'Body' for i in getattr(call.part.obj, 'implements', ()))
      if is_position and is_body and not statement.scope:
        user = '/'.join((*call.scope, call.part.name))
        if user not in users.setdefault(statement, []):
          users[statement].append(user)
  for statement, names in users.items():
    if len(names) > 1:
      yield f'{statement.target} ({statement.place}) sets the positions of {" and ".join(names)}'


def _is_used(resolver: Resolver, binding: Binding, allow_overridden: bool = False) -> bool:
  """Returns whether a statement, or a later one of the same name, sets a parameter of a part in its scope."""
  scope = split_scope(binding.statement.scope)
  own = [used for used in resolver.visited.get(binding.part, ()) if used[: len(scope)] == scope]
  winner = resolver.bindings.winner(binding)
  if winner is None or allow_overridden:
    return bool(own)
  return any(resolver.bindings.lookup(binding.part, binding.param, used) is winner for used in own)


def _unused_problem(resolver: Resolver, binding: Binding, root_name: str) -> str:
  statement, part = binding.statement, binding.part
  part_scopes = resolver.visited.get(part, set())
  what = f'nothing uses {statement.target}: '
  if not part_scopes:
    note = f'{part.name} is not reachable from {root_name}'
    if part.obj in resolver.default_objects:
      param = resolver.default_objects[part.obj]
      note += f'; the default of {param} is already built: bind {param} = @{part.name}()'
    return what + note
  own = split_scope(statement.scope)
  others = {
    resolver.bindings.lookup(part, binding.param, scope)
    for scope in part_scopes
    if scope[: len(own)] == own
  }
  if by := ', '.join(sorted(f'{other.target} ({other.place})' for other in others if other)):
    return f'{statement.target} has no effect: every use of {part.name} has its own, {by}'
  names = {'/'.join(scope) for scopes in resolver.visited.values() for scope in scopes if scope}
  guess = did_you_mean(statement.scope, names)
  return f"{what}no {part.name} is used in scope '{statement.scope}'{guess}"


def _used_macros(bindings: Bindings, root: object) -> set[str]:
  """Returns the macros that bindings refer to, directly or through other macros."""
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
        # The undefined macro is already an error: the most similar one counts as used.
        name = closest(name, bindings.macros) or name
      if name not in used:
        used.add(name)
        for value in definitions.get(name, ()):
          mark(value)

  mark(root)
  for binding in bindings.bound:
    mark(binding.statement.value)
  return used


def _unused_macro(bindings: Bindings, resolver: Resolver, statement: Statement) -> str:
  name = statement.macro_name
  for part in resolver.visited:
    if name in part.parameters and part.parameters[name].nameable:
      return f'nothing uses macro %{name}; did you mean {part.name}.{name}?'
  if bindings.registry.find(name):
    return f'nothing uses macro %{name}; to bind a parameter, write {name}.param = value'
  return f'nothing uses macro %{name}{did_you_mean(name, _named_macros(bindings), "%{}")}'


def _named_macros(bindings: Bindings) -> Iterable[str]:
  for binding in bindings.bound:
    for leaf in leaves(binding.statement.value):
      if isinstance(leaf, Macro):
        yield leaf.name
