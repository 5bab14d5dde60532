"""Converts resolved configs to text: gin text that can be loaded again, and a readable table."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

from t2x.base.ranges import Role
from t2x.config.loading import Config
from t2x.config.parse import PIN_COMMENT, SEARCH_COMMENT, Statement, macros_in
from t2x.config.resolve import PartCall, calls, key_of
from t2x.config.signature import Part
from t2x.config.type_check import has_role, is_tunable
from t2x.config.values import Reference, items_in_gin, map_leaves, to_gin

__all__ = [
  'hyperparameters',
  'parameters_with',
  'render',
  'show',
]

_WIDTH = 100


def render(config: Config) -> str:
  """Renders the config as gin text with every used binding and no includes.

  Loading this text gives the same tree and the same text. Comments name the folders of the user's modules
  and their digests for `load`.
  """
  lines = list(dict.fromkeys(statement.text for statement in config.imports))
  if lines:
    lines += [f'{SEARCH_COMMENT}{folder}' for folder in _module_folders(config)]
    sources = config.used.sources.items()
    lines += [f'{PIN_COMMENT}{name}: {source.digest}' for name, source in sources]
    lines.append('')
  macros = [s for s in config.bindings_used if s.is_macro]
  for statement in sorted(macros, key=lambda s: s.macro_name):
    lines += _assignment(statement.macro_name, statement, config, '')
  if macros:
    lines.append('')
  for title, bound in _blocks(config):
    lines.append(f'{title}:')
    for param, statement in bound.items():
      lines += _assignment(param, statement, config, '  ')
    lines.append('')
  return '\n'.join(lines).rstrip('\n') + '\n'


def _module_folders(config: Config) -> list[str]:
  """Returns the search folders that contain an imported module."""
  tops = {statement.module.partition('.')[0] for statement in config.imports}
  return [
    folder
    for folder in dict.fromkeys([*config.folders, os.getcwd()])
    if any(
      os.path.isfile(os.path.join(folder, f'{top}.py')) or os.path.isdir(os.path.join(folder, top))
      for top in tops
    )
  ]


def _blocks(config: Config) -> Iterator[tuple[str, dict[str, Statement]]]:
  """Yields used bindings by 'scope/Name': the root first, then by name, parameters in signature order."""
  blocks: dict[tuple[str, Part], dict[str, Statement]] = {}
  for call in calls(config.root):
    for param, statement in call.bound.items():
      blocks.setdefault((statement.scope, call.part), {})[param] = statement
  root = config.root.part if isinstance(config.root, PartCall) else None

  def order(block: tuple[str, Part]) -> tuple[Any, ...]:
    (scope, part), name = block, config.name_of(block[1])
    return part is not root, name.lower(), scope, name

  for scope, part in sorted(blocks, key=order):
    bound = blocks[scope, part]
    params = [param for param in config.bindings.bound_params(part) if param in bound]
    title = f'{scope}/{config.name_of(part)}' if scope else config.name_of(part)
    yield title, {param: bound[param] for param in params}


def _assignment(name: str, statement: Statement, config: Config, indent: str) -> list[str]:
  """Returns the lines of `name = value`: long containers have one item per line, references short names."""

  def shortest(leaf):
    part = config.bindings.exact_part(leaf.name) if isinstance(leaf, Reference) else None
    return leaf if part is None else Reference(leaf.scope, config.name_of(part), leaf.evaluate)

  value = map_leaves(shortest, statement.value)
  line = f'{indent}{name} = {to_gin(value)}'
  if len(line) <= _WIDTH or type(value) not in (list, tuple, dict) or not value:
    return [line]
  opening, items, closing = items_in_gin(value)
  inner = [f'{indent}  {item},' for item in items]
  return [f'{indent}{name} = {opening}', *inner, f'{indent}{closing}']


def show(config: Config) -> str:
  """Lists every part in use with its values and the origin of each value."""
  by_part: dict[Part, dict[str, set[str]]] = {}
  for call in calls(config.root):
    if text := '\n'.join(_call_lines(call, config)):
      scope = ''.join(f'{name}/' for name in call.scope)
      by_part.setdefault(call.part, {}).setdefault(text, set()).add(scope)
  blocks = []
  for part, variants in by_part.items():
    name = config.name_of(part)
    for text, scopes in variants.items():
      heads = sorted(scopes) if len(variants) > 1 else ['']
      blocks.append('\n'.join([', '.join(f'{scope}{name}' for scope in heads) + ':', text]))
  return '\n\n'.join(block.rstrip('\n') for block in blocks) + '\n'


def _call_lines(call: PartCall, config: Config) -> Iterator[str]:
  bound = call.bound
  rows = [
    (f'{name} = {text_of(value, config)}', _origin(bound.get(name), config))
    for name, value in values_of(call).items()
  ]
  width = min(max((len(binding) for binding, _ in rows), default=0), 60)
  for binding, origin in rows:
    yield f'  {binding:<{width}}  # {origin}'


def _origin(statement: Statement | None, config: Config) -> str:
  if statement is None:
    return 'default'
  macros = macros_in([statement.value], config.bindings.macros)
  parts = (f'%{name} {definition.place}' for name, definition in macros.items())
  return ', '.join([str(statement.place), *parts])


def hyperparameters(config: Config) -> dict[str, float]:
  """Returns the values of parameters annotated `float | Hyperparameter`, by 'scope/Name.param'.

  Zeros are omitted, because the compiled program skips the computation for them.
  """
  values: dict[str, float] = {}
  for call in calls(config.root):
    for name, value in call.values.items():
      parameter = call.part.parameters.get(name)
      if parameter and is_tunable(parameter.hint) and isinstance(value, float) and value != 0.0:
        values[key_of(call, name)] = value
  return values


def parameters_with(config: Config, role: Role) -> list[str]:
  """Returns the parameters whose annotations contain a role, as 'scope/Name.param'."""
  names = (
    key_of(call, name)
    for call in calls(config.root)
    for name in call.values
    if (parameter := call.part.parameters.get(name)) and has_role(parameter.hint, role)
  )
  return [*dict.fromkeys(names)]


def values_of(call: PartCall) -> dict[str, Any]:
  """Returns the values of a call, with the defaults that a dataclass builds for each object."""
  return call.values | {n: v for n, v in _built_defaults(call.part).items() if n not in call.bound}


def defaults_of(part: Part) -> dict[str, Any]:
  """Returns the defaults of the parameters of a part."""
  defaults = {name: p.default for name, p in part.parameters.items() if not p.required}
  return defaults | _built_defaults(part)


def _built_defaults(part: Part) -> dict[str, Any]:
  fields = dataclasses.fields(part.obj) if dataclasses.is_dataclass(part.obj) else ()
  factories = {field.name: field.default_factory for field in fields}
  return {n: build() for n, build in factories.items() if build is not dataclasses.MISSING}


class _Unquoted(str):
  """String whose repr has no quotes."""

  def __repr__(self) -> str:
    return str(self)


def text_of(
  value: object, config: Config, call_text: Callable[[PartCall], str] | None = None
) -> str:
  """Returns a resolved value as gin text, with calls as references unless `call_text` formats them."""

  def leaf_text(leaf):
    if isinstance(leaf, PartCall) and call_text is not None:
      return _Unquoted(call_text(leaf))
    if isinstance(leaf, PartCall):
      return Reference('/'.join(leaf.scope), config.name_of(leaf.part), leaf.evaluate)
    if leaf is None or isinstance(leaf, (bool, int, float, complex, str, bytes)):
      return leaf
    part = config.bindings.registry.part_of(leaf)
    if part is not None:
      return Reference('', config.name_of(part), False)
    text = repr(leaf)
    is_address = ' at 0x' in text
    return _Unquoted(getattr(leaf, '__qualname__', type(leaf).__name__) if is_address else text)

  return to_gin(map_leaves(leaf_text, value))
