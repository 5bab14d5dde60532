"""A resolved config as text: `render` to run again, `show` to see where each value comes from."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from t2x.config.load import Config
from t2x.config.parse import SEARCH_COMMENT, Statement, macros_in
from t2x.config.resolve import Argument, Call, Shared, calls
from t2x.config.signature import MISSING, Part
from t2x.config.values import Reference, map_leaves, to_gin

__all__ = ['Text', 'plain', 'render', 'show']

_WIDTH = 100


def render(config: Config) -> str:
  """The config as gin text: every binding that gave a value, and no include.

  Resolving it again gives the same tree and the same text. The folders that hold the user's modules
  are kept in comments that `load` reads.
  """
  lines = list(dict.fromkeys(statement.text for statement in config.imports))
  if lines:
    lines += [f'{SEARCH_COMMENT}{folder}' for folder in _module_folders(config)]
    lines.append('')
  macros = [s for s in config.bindings_used if s.is_macro]
  for statement in sorted(macros, key=lambda s: s.macro_name):
    lines += _assignment(statement.macro_name, _canonical(statement.value, config), '')
  if macros:
    lines.append('')
  for (scope, name), bound in _blocks(config):
    lines.append(f'{scope}/{name}:' if scope else f'{name}:')
    for param, statement in bound:
      lines += _assignment(param, _canonical(statement.value, config), '  ')
    lines.append('')
  return '\n'.join(lines).rstrip('\n') + '\n'


def _module_folders(config: Config) -> list[str]:
  """Returns the search folders that contain an imported module."""
  tops = {statement.module.partition('.')[0] for statement in config.imports}
  return [
    folder
    for folder in dict.fromkeys([os.getcwd(), *config.folders])
    if any(
      os.path.isfile(os.path.join(folder, f'{top}.py')) or os.path.isdir(os.path.join(folder, top))
      for top in tops
    )
  ]


def _blocks(config: Config) -> Iterator[tuple[tuple[str, str], list[tuple[str, Statement]]]]:
  """Used bindings by scope and part: the root first, then by name; parameters as in the signature."""
  used = {
    (argument.statement.scope, call.part, param): argument.statement
    for call in calls(config.root)
    for param, argument in call.arguments.items()
    if argument.statement is not None
  }
  root = config.root.part if isinstance(config.root, Call) else None
  blocks: dict[tuple[str, Part], list[tuple[str, Statement]]] = {}
  for (scope, part, param), statement in used.items():
    blocks.setdefault((scope, part), []).append((param, statement))
  names = {key: (key[0], config.bindings.registry.name_of(key[1])) for key in blocks}
  order = sorted(blocks, key=lambda key: (key[1] is not root, names[key][1].lower(), names[key]))
  for key in order:
    place = {param: i for i, param in enumerate(config.bindings.bound_params(key[1]))}
    yield names[key], sorted(blocks[key], key=lambda pair: place[pair[0]])


def _canonical(value: Any, config: Config) -> Any:
  """References under the shortest name that means one part."""

  def one(leaf):
    part = config.bindings.known_part(leaf.name) if isinstance(leaf, Reference) else None
    if part is None:
      return leaf
    return Reference(leaf.scope, config.bindings.registry.name_of(part), leaf.evaluate)

  return map_leaves(one, value)


def _assignment(name: str, value: Any, indent: str) -> list[str]:
  """`name = value`, a long container with an item a line."""
  line = f'{indent}{name} = {to_gin(value)}'
  if len(line) <= _WIDTH or type(value) not in (list, tuple, dict) or not value:
    return [line]
  opening, closing = '{', '}'
  if isinstance(value, (list, tuple)):
    opening, closing = ('[', ']') if isinstance(value, list) else ('(', ')')
  if isinstance(value, dict):
    items: Iterable[str] = (f'{to_gin(k)}: {to_gin(v)}' for k, v in value.items())
  else:
    items = map(to_gin, value)
  inner = [f'{indent}  {item},' for item in items]
  return [f'{indent}{name} = {opening}', *inner, f'{indent}{closing}']


def show(config: Config) -> str:
  """Every part on the path with every value it gets and the origin of each, for people to read."""
  by_part: dict[Part, dict[str, set[str]]] = {}
  for call in calls(config.root):
    text = '\n'.join(_shown(call, config))
    if not text:
      continue
    scope = ''.join(f'{name}/' for name in call.scope)
    by_part.setdefault(call.part, {}).setdefault(text, set()).add(scope)
  blocks = []
  for part, variants in by_part.items():
    name = config.bindings.registry.name_of(part)
    for text, scopes in variants.items():
      heads = sorted(scopes) if len(variants) > 1 else ['']
      blocks.append('\n'.join([', '.join(f'{scope}{name}' for scope in heads) + ':', text]))
  return '\n\n'.join(block.rstrip('\n') for block in blocks) + '\n'


def _shown(call: Call, config: Config) -> Iterator[str]:
  rows = []
  for name, parameter in call.part.parameters.items():
    argument = call.arguments.get(name)
    if argument is not None and argument.statement is not None:
      rows.append((f'{name} = {_value(argument, config)}', _origin(argument.statement, config)))
    elif parameter.default is not MISSING:
      default = argument.value if argument else parameter.default
      rows.append((f'{name} = {to_gin(plain(default, config))}', 'default'))
  for name, argument in call.arguments.items():
    if name not in call.part.parameters and argument.statement is not None:
      rows.append((f'{name} = {_value(argument, config)}', _origin(argument.statement, config)))
  width = min(max((len(left) for left, _ in rows), default=0), 60)
  for left, origin in rows:
    yield f'  {left:<{width}}  # {origin}'


def _value(argument: Argument, config: Config) -> str:
  return to_gin(plain(argument.value, config))


def _origin(statement: Statement, config: Config) -> str:
  macros = macros_in([statement.value], config.bindings.macros)
  parts = (f'%{name} {one.place}' for name, one in macros.items())
  return ', '.join([str(statement.place), *parts])


class Text(str):
  """Text that stands for itself."""

  def __repr__(self) -> str:
    return str(self)


def plain(value: Any, config: Config) -> Any:
  """A resolved value with references for calls, and named functions for themselves."""

  def one(leaf):
    call = leaf.call if isinstance(leaf, Shared) else leaf
    if isinstance(call, Call):
      return Reference('/'.join(call.scope), _name(call, config), call.evaluate)
    if leaf is None or isinstance(leaf, (bool, int, float, complex, str, bytes)):
      return leaf
    part = config.bindings.registry.part_of(leaf)
    if part is not None:
      return Reference('', config.bindings.registry.name_of(part), False)
    text = repr(leaf)
    is_address = ' at 0x' in text
    return Text(getattr(leaf, '__qualname__', type(leaf).__name__) if is_address else text)

  return map_leaves(one, value)


def _name(call: Call, config: Config) -> str:
  return config.bindings.registry.name_of(call.part)
