"""A resolved config as text: gin text to run again (`render`), a table to read (`show`), one text and hash
for all equal configs (`canonical`, `identity`), and the lines in which two configs differ (`diff`).

All of them go over `calls` and the values that each call is `given`, and write a value with `_text`.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from typing import Any

from t2x.config.load import Config
from t2x.config.parse import SEARCH_COMMENT, Statement, macros_in
from t2x.config.resolve import Call, build, calls, key_of
from t2x.config.signature import Part
from t2x.config.type_check import is_tunable
from t2x.config.values import Reference, items_in_gin, map_leaves, to_gin

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
    for folder in dict.fromkeys([os.getcwd(), *config.folders])
    if any(
      os.path.isfile(os.path.join(folder, f'{top}.py')) or os.path.isdir(os.path.join(folder, top))
      for top in tops
    )
  ]


def _blocks(config: Config) -> Iterator[tuple[str, dict[str, Statement]]]:
  """Used bindings by 'scope/Name': the root first, then by name; parameters as in the signature."""
  blocks: dict[tuple[str, Part], dict[str, Statement]] = {}
  for call in calls(config.root):
    for param, statement in call.bound.items():
      blocks.setdefault((statement.scope, call.part), {})[param] = statement
  root = config.root.part if isinstance(config.root, Call) else None

  def place(block: tuple[str, Part]) -> tuple[Any, ...]:
    (scope, part), name = block, config.name_of(block[1])
    return part is not root, name.lower(), scope, name

  for scope, part in sorted(blocks, key=place):
    bound = blocks[scope, part]
    params = [param for param in config.bindings.bound_params(part) if param in bound]
    title = f'{scope}/{config.name_of(part)}' if scope else config.name_of(part)
    yield title, {param: bound[param] for param in params}


def _assignment(name: str, statement: Statement, config: Config, indent: str) -> list[str]:
  """`name = value`, a long container with one item per line; references under their shortest names."""

  def shortest(leaf):
    part = config.bindings.known_part(leaf.name) if isinstance(leaf, Reference) else None
    return leaf if part is None else Reference(leaf.scope, config.name_of(part), leaf.evaluate)

  value = map_leaves(shortest, statement.value)
  line = f'{indent}{name} = {to_gin(value)}'
  if len(line) <= _WIDTH or type(value) not in (list, tuple, dict) or not value:
    return [line]
  opening, items, closing = items_in_gin(value)
  inner = [f'{indent}  {item},' for item in items]
  return [f'{indent}{name} = {opening}', *inner, f'{indent}{closing}']


def show(config: Config) -> str:
  """Every part on the path with every value it gets and the origin of each, for people to read."""
  by_part: dict[Part, dict[str, set[str]]] = {}
  for call in calls(config.root):
    if text := '\n'.join(_shown(call, config)):
      scope = ''.join(f'{name}/' for name in call.scope)
      by_part.setdefault(call.part, {}).setdefault(text, set()).add(scope)
  blocks = []
  for part, variants in by_part.items():
    name = config.name_of(part)
    for text, scopes in variants.items():
      heads = sorted(scopes) if len(variants) > 1 else ['']
      blocks.append('\n'.join([', '.join(f'{scope}{name}' for scope in heads) + ':', text]))
  return '\n\n'.join(block.rstrip('\n') for block in blocks) + '\n'


def _shown(call: Call, config: Config) -> Iterator[str]:
  bound = call.bound
  rows = [
    (f'{name} = {_text(value, config)}', _origin(bound.get(name), config))
    for name, value in call.given.items()
  ]
  width = min(max((len(left) for left, _ in rows), default=0), 60)
  for left, origin in rows:
    yield f'  {left:<{width}}  # {origin}'


def _origin(statement: Statement | None, config: Config) -> str:
  if statement is None:
    return 'default'
  macros = macros_in([statement.value], config.bindings.macros)
  parts = (f'%{name} {one.place}' for name, one in macros.items())
  return ', '.join([str(statement.place), *parts])


def identity(config: Config, without: Collection[str] = ()) -> str:
  """Twelve hexadecimal digits of `canonical`'s hash."""
  return hashlib.sha256(canonical(config, without).encode()).hexdigest()[:12]


def canonical(config: Config, without: Collection[str] = ()) -> str:
  """All that is built, defaults included, as text in which equal configs are equal.

  An object that a macro builds and one that is built in place are written the same way.

  Args:
    config: a resolved config.
    without: parameters left out, as 'Trainer.seed' or 'encoder/MLP.dropout_rate'.
  """

  def written(call: Call) -> str:
    given = call.given
    names = (name for name in sorted(given) if key_of(call, name) not in without)
    arguments = ', '.join(f'{name}={_text(given[name], config, written)}' for name in names)
    return f'{"" if call.evaluate else "@"}{config.name_of(call.part)}({arguments})'

  return _text(config.root, config, written)


def hyperparameters(config: Config) -> dict[str, float]:
  """Values of the parameters annotated `float | Hyperparameter`, by 'scope/Name.param'.

  Zeros are left out: they leave computation out, so that they belong to the program.
  """
  found: dict[str, float] = {}
  for call in calls(config.root):
    for name, value in call.given.items():
      parameter = call.part.parameters.get(name)
      if parameter and is_tunable(parameter.hint) and isinstance(value, float) and value != 0.0:
        found[key_of(call, name)] = value
  return found


def diff(a: Config, b: Config) -> list[str]:
  """A line for each place where `a` and `b` differ: `Experiment.model.d_model: 256 -> 512`.

  Macros, scopes, files and the order of bindings make no difference, nor does binding a default.
  """

  def lines(path: str, one: Any, other: Any) -> Iterator[str]:
    (kind, inside), (other_kind, others) = _branches(one), _branches(other)
    if kind is not None and kind == other_kind:
      for step in dict.fromkeys([*inside, *others]):
        yield from lines(path + step, inside.get(step, _ABSENT), others.get(step, _ABSENT))
    elif not (_is_equal_object(one, other) or _is_equal_object(other, one)):
      left, right = _brief(one, a), _brief(other, b)
      if left != right:
        yield f'{path}: {left} -> {right}'

  name = a.root.part.name if isinstance(a.root, Call) else 'root'
  return list(dict.fromkeys(lines(name, a.root, b.root)))


def _branches(value: Any) -> tuple[Any, dict[str, Any]]:
  """What values are equal to if all that is inside is equal (None: those without branches are compared
  as text); and what is inside, by the step of its path."""
  if isinstance(value, Call):
    given = dict.fromkeys(value.part.parameters, _ABSENT) | value.given
    kind = id(value.part.obj), value.evaluate
    return kind, {f'.{name}': argument for name, argument in given.items()}
  if isinstance(value, (list, tuple)):
    return (type(value), len(value)), {f'[{i}]': item for i, item in enumerate(value)}
  if type(value) is dict:
    return (dict, *map(repr, value)), {f'[{key!r}]': item for key, item in value.items()}
  return None, {}


class _Written(str):
  """Text that is written without quotes."""

  def __repr__(self) -> str:
    return str(self)


_ABSENT = _Written('(not set)')


def _is_equal_object(call: Any, other: Any) -> bool:
  """Whether a config's `@Name()` builds the object that the other one has as a default."""
  if not isinstance(call, Call) or not call.evaluate or type(other) is not call.part.obj:
    return False
  return bool(build(call) == other)


def _brief(value: Any, config: Config) -> str:
  """The value as gin text; a part with the arguments that are bound."""
  if not isinstance(value, Call):
    return _text(value, config)
  name, given = config.name_of(value.part), value.given
  bound = ', '.join(f'{param}={_text(given[param], config)}' for param in value.bound)
  if value.evaluate:
    return f'{name}({bound})'
  return f'@{name} with {bound}' if bound else f'@{name}'


def _text(value: Any, config: Config, written: Callable[[Call], str] | None = None) -> str:
  """A resolved value as gin text: named functions as references, calls as `written`, or as references."""

  def one(leaf):
    if isinstance(leaf, Call) and written is not None:
      return _Written(written(leaf))
    if isinstance(leaf, Call):
      return Reference('/'.join(leaf.scope), config.name_of(leaf.part), leaf.evaluate)
    if leaf is None or isinstance(leaf, (bool, int, float, complex, str, bytes)):
      return leaf
    part = config.bindings.registry.part_of(leaf)
    if part is not None:
      return Reference('', config.name_of(part), False)
    text = repr(leaf)
    is_address = ' at 0x' in text
    return _Written(getattr(leaf, '__qualname__', type(leaf).__name__) if is_address else text)

  return to_gin(map_leaves(one, value))
