"""Compares resolved settings: identities of configs, and the differences between two configs.

`resolved` converts a config to nested lists and dicts that JSON can store, so that a run can be compared with today's
config without the code of the run. The name identifies a part of t2x; the module, the qualified name and the digests of
its modules (see `t2x.config.used_modules`) identify a part of the user's.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t2x.base.files import write_atomically
from t2x.base.json_files import Damaged, dataclass_from_json, read_json, write_json
from t2x.config.bindings import Scope
from t2x.config.importing import COPIES, has_moved_imports
from t2x.config.loading import Config
from t2x.config.moved import MOVED, RENAMED
from t2x.config.rendering import defaults_of, text_of, values_of
from t2x.config.resolve import PartCall, build, key_of
from t2x.config.signature import Part
from t2x.config.sources import ModuleSource, is_own

__all__ = [
  'Resolved',
  'canonical',
  'change_lines',
  'diff',
  'differences',
  'identity',
  'older_identity',
  'paths_of',
  'read_resolved',
  'resolved',
  'write_resolved',
]

# A leaf as gin text, or {'part': name, 'built': ..., 'values': {...}, 'own': [...]}, {'list': [...]}, {'tuple': [...]}
# or {'dict': [[key, value], ...]}.
Tree = Any
_ABSENT = '(not set)'
# File with the resolved config of a run folder.
RESOLVED = 'resolved.json'


@dataclasses.dataclass(frozen=True)
class Resolved:
  """Resolved values of a config.

  Attributes:
    settings: all values, including defaults. `own` lists the parameters whose values differ from the defaults.
    modules: digests of the user's modules by name, and versions of libraries whose parts are used.
    data: fingerprints of the sources by name; {} if they were not read.
  """

  settings: Tree
  modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
  data: Mapping[str, str] = dataclasses.field(default_factory=dict)


def resolved(config: Config, without: Collection[str] = ()) -> Resolved:
  """Returns the resolved values of a config.

  The result does not depend on macros, scopes, files, the order of bindings, or bindings of default values.

  Args:
    config: a resolved config.
    without: parameters to omit, such as 'Trainer.seed' or 'encoder/MLP.dropout_rate'.
  """
  return Resolved(_Trees(config, without).of(config.root)[0], config.used.digests)


def read_resolved(
  folder: Path, sources: Mapping[str, ModuleSource] | None = None
) -> Resolved | None:
  """Returns the resolved values of a run's config at training time; None for runs of older versions, which have none or
  bind settings that have moved.

  Args:
    folder: the run folder.
    sources: the user's modules of today. If one differs from the copy in the run folder only in imports of names of
      t2x that have moved, the result has its digest.

  Raises:
    Damaged: t2x did not write the file in this form.
  """
  path = folder / RESOLVED
  try:
    content = dataclass_from_json(Resolved, read_json(path), path)
  except FileNotFoundError:
    return None
  if not _is_tree(content.settings):
    raise Damaged(f'{path} is damaged: its settings have another form')
  content = dataclasses.replace(content, settings=_renamed(content.settings))
  if _has_moved(content.settings):
    return None
  modules = {
    name: source.digest
    for name, source in (sources or {}).items()
    if content.modules.get(name, source.digest) != source.digest
    and has_moved_imports(folder, name, content.modules[name], source.content)
  }
  return dataclasses.replace(content, modules={**content.modules, **modules})


def _renamed(tree: Tree) -> Tree:
  """Returns a recorded tree with the names of today of its settings."""
  match tree:
    case {'part': str()}:
      today = RENAMED.get(_part_name(tree), {})
      values = {today.get(name, name): _renamed(value) for name, value in tree['values'].items()}
      return {**tree, 'values': values, 'own': [today.get(name, name) for name in tree['own']]}
    case {'dict': list(pairs)}:
      return {'dict': [[key, _renamed(value)] for key, value in pairs]}
    case {'list': list(items)} | {'tuple': list(items)}:
      return {kind: [_renamed(item) for item in items] for kind in tree}
  return tree


def _part_name(tree: dict[str, Any]) -> str:
  return tree['part'].rpartition('.')[2]


def _has_moved(tree: Tree) -> bool:
  children = _branches(tree)[1]
  if isinstance(tree, dict) and 'part' in tree:
    settings = MOVED.get(_part_name(tree), {})
    if any(name in settings for name in tree['own']):
      return True
  return any(map(_has_moved, children.values()))


def _is_tree(tree: object) -> bool:
  if not isinstance(tree, dict):
    return isinstance(tree, str)
  match tree:
    case {'part': str(), 'built': bool(), 'values': dict(values), 'own': list(own)}:
      return all(map(_is_tree, values.values())) and all(name in values for name in own)
    case {'dict': list(pairs)}:
      items = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2]
      return len(items) == len(pairs) and all(isinstance(k, str) and _is_tree(v) for k, v in items)
    case {'list': list(items)} | {'tuple': list(items)}:
      return len(tree) == 1 and all(map(_is_tree, items))
  return False


def write_resolved(folder: Path, content: Resolved, copies: Mapping[str, ModuleSource]) -> None:
  """Writes the resolved values of a config, and copies of the user's modules, into a run folder."""
  write_json(folder / RESOLVED, content)
  for source in copies.values():
    path = folder / COPIES / source.path
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, source.content)


def canonical(config: Config, without: Collection[str] = (), restated: Collection[str] = ()) -> str:
  """Returns a canonical text of the parts and the values that differ from their defaults: equal for equal configs.

  Without defaults, a new parameter does not change the text.

  Args:
    config: a resolved config.
    without: parameters to omit, such as 'Trainer.seed' or 'encoder/MLP.dropout_rate'.
    restated: paths of values to include even if they are defaults, as in `differences`.
  """
  tree = _Trees(config, without).of(config.root)[0]
  return json.dumps(_own(tree, _root_name(tree), restated), sort_keys=True)


def identity(
  config: Config,
  without: Collection[str] = (),
  restated: Collection[str] = (),
  data: Mapping[str, str] | None = None,
) -> str:
  """Returns a hash of the settings, followed by '.' and a hash of the user's modules and data if the config has any.

  Args:
    config: a resolved config.
    without: parameters to omit.
    restated: paths of values to include even if they are defaults.
    data: digests of data by name.
  """
  name = _hash(canonical(config, without, restated))[:12]
  code = config.used.digests
  return (
    f'{name}.{_hash(json.dumps([code, data or {}], sort_keys=True))[:8]}' if code or data else name
  )


def paths_of(config: Config, names: Collection[str]) -> set[str]:
  """Returns the paths of parameters, as in `differences`; `names` are as 'Trainer.seed'."""

  def missing(tree: Tree, other: Tree, path: str) -> Iterator[str]:
    children, others = _branches(tree)[1], _branches(other)[1]
    for step, child in children.items():
      if step not in others:
        yield path + step
      else:
        yield from missing(child, others[step], path + step)

  tree = _Trees(config, ()).of(config.root)[0]
  return {*missing(tree, _Trees(config, names).of(config.root)[0], _root_name(tree))}


def older_identity(config: Config, without: Collection[str] = ()) -> str:
  """Returns the identity of trials of version 0.1.0: a hash of all values, with short names of the user's parts."""

  def call_text(call: PartCall) -> str:
    values = call.values
    names = (name for name in sorted(values) if key_of(call, name) not in without)
    arguments = ', '.join(f'{name}={text_of(values[name], config, call_text)}' for name in names)
    return f'{"" if call.evaluate else "@"}{config.name_of(call.part)}({arguments})'

  return _hash(text_of(config.root, config, call_text))[:12]


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()


class _Trees:
  """Converts the values of a config."""

  def __init__(self, config: Config, without: Collection[str]):
    self.config, self.without = config, without
    self._calls: dict[int, tuple[Tree, bool]] = {}

  def of(self, value: Any, scope: Scope = ()) -> tuple[Tree, bool]:
    """Returns the tree of a value in a scope, and whether a binding sets a value in it that is not the default."""
    if isinstance(value, PartCall):
      if id(value) not in self._calls:
        self._calls[id(value)] = self._call(value)
      return self._calls[id(value)]
    if type(value) in (list, tuple):
      items = [self.of(item, scope) for item in value]
      return {type(value).__name__: [tree for tree, _ in items]}, any(own for _, own in items)
    if type(value) is dict:
      pairs = [(self._leaf(key), *self.of(item, scope)) for key, item in value.items()]
      return {'dict': [[key, tree] for key, tree, _ in pairs]}, any(own for *_, own in pairs)
    part = self.config.bindings.registry.part_of(type(value))
    if part is not None and dataclasses.is_dataclass(value):
      return self._object(value, part, scope), False
    return self._leaf(value), False

  def _call(self, call: PartCall) -> tuple[Tree, bool]:
    # A default may be a partial function with settings of its own.
    preset = call.obj.keywords if isinstance(call.obj, functools.partial) else {}
    defaults = defaults_of(call.part) | preset
    values: dict[str, Tree] = {}
    own = []
    settings = defaults | values_of(call)
    for name in dict.fromkeys([*call.part.parameters, *settings]):
      if name not in settings or key_of(call, name) in self.without:
        continue
      value = settings[name]
      argument = call.arguments.get(name)
      if argument is None:
        values[name], is_own = self.of(defaults[name], call.scope)[0], False
      elif argument.statement is None:
        values[name], is_own = self.of(value)
      else:
        is_own = name not in defaults or not self._is_default(value, defaults[name], call.scope)
        value = value if is_own else _default(value, defaults[name])
        values[name] = self.of(value, call.scope)[0]
      if is_own:
        own.append(name)
    tree = {'part': self._name(call.part), 'built': call.evaluate, 'values': values, 'own': own}
    return tree, bool(own)

  def _object(self, value: Any, part: Part, scope: Scope) -> Tree:
    """Returns the tree of a default object: the tree of a call that builds this object."""
    names = [
      field.name
      for field in dataclasses.fields(value)
      if field.init and '/'.join((*scope, f'{part.name}.{field.name}')) not in self.without
    ]
    values = {name: self.of(getattr(value, name), scope)[0] for name in names}
    defaults = {
      name: self.of(default, scope)[0]
      for name, default in defaults_of(part).items()
      if name in values
    }
    own = [name for name in names if name not in defaults or values[name] != defaults[name]]
    return {'part': self._name(part), 'built': True, 'values': values, 'own': own}

  def _is_default(self, value: Any, default: Any, scope: Scope) -> bool:
    if isinstance(value, PartCall) and not value.evaluate:
      return value.part.obj is default and not self.of(value)[1]
    if isinstance(value, PartCall):
      # Without the omitted parameters, then as objects: a constructor may convert its arguments.
      equal = self.of(value)[0] == self.of(default, scope)[0]
      return equal or (type(default) is value.part.obj and bool(build(value) == default))
    if type(value) in (list, tuple) and type(default) is type(value):
      pairs = zip(value, default, strict=False)
      return len(value) == len(default) and all(self._is_default(*pair, scope) for pair in pairs)
    if type(value) is dict and type(default) is dict:
      pairs = zip(value.values(), default.values(), strict=False)
      return [*value] == [*default] and all(self._is_default(*pair, scope) for pair in pairs)
    numbers = type(value) in (int, float) and type(default) in (int, float)
    return value == default if numbers else self._leaf(value) == self._leaf(default)

  def _name(self, part: Part) -> str:
    return '.'.join(filter(None, self.config.bindings.registry.home_of(part)))

  def _leaf(self, value: object) -> str:
    part = self.config.bindings.registry.part_of(value)
    if part is not None:
      return f'@{self._name(part)}'
    home = getattr(value, '__module__', None)
    if (
      callable(value) and isinstance(home, str) and is_own(home) and hasattr(value, '__qualname__')
    ):
      return f'{home}.{value.__qualname__}'
    return text_of(value, self.config)


def _default(value: Any, default: Any) -> Any:
  """Returns the default with the factories of an equal value, whose arguments are resolved."""
  if isinstance(value, PartCall):
    return default if value.evaluate else value
  if type(value) in (list, tuple):
    return type(value)(map(_default, value, default))
  if type(value) is dict:
    return {key: _default(item, default[key]) for key, item in value.items()}
  return default


def _root_name(tree: Tree) -> str:
  return _part_name(tree) if isinstance(tree, dict) and 'part' in tree else 'root'


def _own(tree: Tree, path: str, restated: Collection[str]) -> Tree:
  """Omits the defaults, except at the paths `restated`."""
  kind, children = _branches(tree)
  if kind is None:
    return tree
  within = {step: _own(child, path + step, restated) for step, child in children.items()}
  if isinstance(tree, dict) and 'part' in tree:
    names = [
      name
      for name in children
      if name[1:] in tree['own'] or any(map(_is_within(path + name), restated))
    ]
    former = {
      f'.{today}': f'.{before}' for before, today in RENAMED.get(_part_name(tree), {}).items()
    }
    return [tree['part'], tree['built'], {former.get(name, name): within[name] for name in names}]
  return [kind[0], [*within.items()]]


def _is_within(path: str) -> Callable[[str], bool]:
  """Returns a predicate: whether a path names the value at `path` or a value inside it."""
  return lambda other: other == path or other.startswith((f'{path}.', f'{path}['))


def _branches(tree: Tree) -> tuple[tuple[Any, ...] | None, dict[str, Tree]]:
  """Returns the kind of a tree, and its children by path step; leaves have the kind `None`.

  Trees of the same kind are equal if their children are equal.
  """
  if not isinstance(tree, dict):
    return None, {}
  if 'part' in tree:
    return (tree['part'], tree['built']), {
      f'.{name}': child for name, child in tree['values'].items()
    }
  if 'dict' in tree:
    pairs = tree['dict']
    return ('dict', *(key for key, _ in pairs)), {f'[{key}]': child for key, child in pairs}
  [(kind, items)] = tree.items()
  return (kind, len(items)), {f'[{i}]': item for i, item in enumerate(items)}


def diff(a: Config, b: Config) -> list[str]:
  """Lists the `differences`, one line each: `Experiment.model.d_model: 256 -> 512`."""
  return change_lines(differences(resolved(a), resolved(b)))


def change_lines(changes: Iterable[tuple[str, str, str]]) -> list[str]:
  """Formats `differences` as lines."""
  return [f'{path}: {before} -> {after}' for path, before, after in changes]


def differences(a: Resolved, b: Resolved) -> list[tuple[str, str, str]]:
  """Lists the values that differ: path, value in `a`, value in `b`; then 'module NAME' and 'data
  NAME' with their digests.

  A parameter of only one side, added or removed since, is a difference only if its value differs from the default.
  Data are compared if both sides have read them.
  """
  absent = '(not used)'
  code = [
    (f'module {name}', a.modules.get(name, absent), b.modules.get(name, absent))
    for name in dict.fromkeys([*a.modules, *b.modules])
  ]
  data = [(f'data {name}', a.data[name], b.data[name]) for name in a.data if name in b.data]
  settings = _differences(a.settings, b.settings, _root_name(a.settings))
  return [*dict.fromkeys(settings), *(line for line in (*code, *data) if line[1] != line[2])]


def _differences(tree: Tree, other: Tree, path: str) -> Iterator[tuple[str, str, str]]:
  (kind, children), (other_kind, other_children) = _branches(tree), _branches(other)
  if kind is None or kind != other_kind:
    if tree != other:
      yield path, _brief(tree), _brief(other)
    return
  for step in dict.fromkeys([*children, *other_children]):
    if step in children and step in other_children:
      yield from _differences(children[step], other_children[step], path + step)
    elif step[1:] in (tree if step in children else other)['own']:
      before, after = (
        _brief(side[step]) if step in side else _ABSENT for side in (children, other_children)
      )
      yield path + step, before, after


def _brief(tree: Tree) -> str:
  """Returns a value as gin text; a part with the arguments that differ from their defaults."""
  if not isinstance(tree, dict) or 'part' not in tree:
    return _text(tree)
  bound = ', '.join(f'{name}={_text(tree["values"][name])}' for name in tree['own'])
  if tree['built']:
    return f'{tree["part"]}({bound})'
  return f'@{tree["part"]} with {bound}' if bound else f'@{tree["part"]}'


def _text(tree: Tree) -> str:
  if not isinstance(tree, dict):
    return str(tree)
  if 'part' in tree:
    return f'@{tree["part"]}{"()" if tree["built"] else ""}'
  if 'dict' in tree:
    return f'{{{", ".join(f"{key}: {_text(item)}" for key, item in tree["dict"])}}}'
  [(kind, items)] = tree.items()
  inner = ', '.join(map(_text, items))
  if kind == 'list':
    return f'[{inner}]'
  return f'({inner},)' if len(items) == 1 else f'({inner})'
