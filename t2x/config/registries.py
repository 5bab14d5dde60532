"""Registry of the names that configs may use: exports of t2x's packages and of the user's modules."""

import contextlib
import functools
import gc
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from t2x.config.importing import Search, import_problem
from t2x.config.parse import Import, Pin
from t2x.config.protocols import is_protocol
from t2x.config.signature import Part, describe
from t2x.config.trusted import Untrusted
from t2x.config.values import Finding

__all__ = ['Registry']


class Registry:
  """Maps names to parts (classes, functions and callable objects).

  A part is found by its name, first in the user's modules. If several of them, or several of t2x's, export this name,
  the end of its full name is needed, such as `layers.MLP`.
  """

  def __init__(self):
    self._names: dict[str, dict[str, Any]] = {}
    self._parts: dict[int, Part] = {}
    # Ids of the parts of t2x, whose names do not depend on their modules.
    self._own: frozenset[int] = frozenset()

  @classmethod
  def of(cls, modules: Iterable[str], without: Collection[str] = ()) -> 'Registry':
    """Builds a registry of the exports of modules, except some names. Cached by module: inspecting them is
    slow."""
    cached, registry = _read(tuple(modules)), cls()
    registry._names = {
      name: dict(fulls) for name, fulls in cached._names.items() if name not in without
    }
    registry._parts = dict(cached._parts)
    registry._own = frozenset(cached._parts)
    return registry

  def add(self, module: types.ModuleType, alias: str | None = None) -> None:
    """Adds the exports of a module: its `__all__`, else the public classes and functions that it defines, and what it
    re-exports of the `__all__` of its modules."""
    for name in _exported(module):
      self.add_object(alias or module.__name__, name, getattr(module, name))

  def add_object(self, module: str, name: str, obj: Any) -> None:
    """Adds an object if it is callable."""
    if _is_part(obj):
      self._names.setdefault(name, {})[f'{module}.{name}'] = obj
      if id(obj) not in self._parts:
        self._parts[id(obj)] = describe(obj, name)

  def find(self, name: str) -> list[Part]:
    """Returns the different parts whose full names end in `name`; only those of the user's modules if there are any, so
    that a new name of t2x changes no config."""
    objects = self._names.get(name.rpartition('.')[2], {})
    matches = {id(obj) for full, obj in objects.items() if f'.{full}'.endswith(f'.{name}')}
    return [self._parts[i] for i in matches - self._own or matches]

  def full_names(self, name: str) -> list[str]:
    """Returns the full names that end in `name`."""
    objects = self._names.get(name.rpartition('.')[2], {})
    return sorted(full for full in objects if f'.{full}'.endswith(f'.{name}'))

  def name_of(self, part: Part) -> str:
    """Returns the shortest name for which `find` returns only this part."""
    if self.find(part.name) == [part]:
      return part.name
    fulls = (full for full, obj in self._names[part.name].items() if obj is part.obj)
    return min(fulls, key=len)

  def hidden_by(self, part: Part) -> list[str]:
    """Returns the full names of the parts of t2x that a part of the user's modules hides."""
    objects = {} if id(part.obj) in self._own else self._names[part.name]
    return sorted(full for full, obj in objects.items() if id(obj) in self._own)

  def home_of(self, part: Part) -> tuple[str, str]:
    """Returns the module and qualified name of a user's part; '' and the name for a part of t2x."""
    obj = part.obj
    if id(obj) in self._own:
      return '', part.name
    module, name = getattr(obj, '__module__', None), getattr(obj, '__qualname__', '')
    target = sys.modules.get(module or '')
    for step in name.split('.'):
      target = getattr(target, step, None)
    if target is obj:
      return str(module), name
    # A nameless object, such as a partial function, has the name of its module's variable.
    fulls = (full.rpartition('.') for full, other in self._names[part.name].items() if other is obj)
    module, _, name = min(
      (full for full in fulls if full[0] in sys.modules), default=('', '', part.name)
    )
    return module, name

  def exported_by(self, part: Part) -> set[str]:
    """Returns the modules of the user's that export a part."""
    fulls = (full for full, other in self._names[part.name].items() if other is part.obj)
    return set() if id(part.obj) in self._own else {full.rpartition('.')[0] for full in fulls}

  def part_of(self, obj: Any) -> Part | None:
    """Returns the part of an object, or None if it is not registered."""
    part = self._parts.get(id(obj))
    return part if part is not None and part.obj is obj else None

  def names(self) -> list[str]:
    """Returns the names without modules."""
    return list(self._names)

  def load(
    self, imports: Iterable[Import], folders: Iterable[str], pins: Sequence[Pin] = ()
  ) -> list[Finding]:
    """Imports the user's modules; returns one finding per failed import.

    Args:
      imports: the import statements.
      folders: folders of the gin files, and the folders that these name.
      pins: digests of the user's modules.
    """
    search, imports = Search(folders, pins), [*imports]
    for statement in imports:
      try:
        search.prepare(statement)
      except Untrusted as error:
        # Trust was denied or is not confirmed: import nothing.
        return [Finding(statement.place, str(error))]
    try:
      if findings := search.check_pins():
        return findings
    except Untrusted as error:
      return [Finding(pins[0].place, str(error))]
    for statement in imports:
      try:
        self._load(statement, search)
      except (Exception, SystemExit) as error:
        # A user's module may fail in any way.
        findings.append(Finding(statement.place, import_problem(statement.module, error)))
    return findings

  def _load(self, statement: Import, search: Search) -> None:
    module_name = statement.module
    package, _, last = module_name.rpartition('.')
    try:
      module = search.load(module_name)
    except ModuleNotFoundError as error:
      if not (statement.is_from and error.name == module_name and package):
        raise
      obj = getattr(search.load(package), last, None)
      if obj is None:
        raise
      self.add_object(package, statement.alias or last, obj)
      return
    self.add(module)
    if statement.alias:
      self.add(module, statement.alias)


@functools.cache
def _read(modules: tuple[str, ...]) -> Registry:
  registry = Registry()
  with _permanent_objects():
    for module in modules:
      registry.add(importlib.import_module(module))
  return registry


@contextlib.contextmanager
def _permanent_objects() -> Iterator[None]:
  """Excludes the objects that the context creates from Python's search for reference cycles.

  Modules are never freed: searching them would take an eighth of the time until the first train step.
  """
  enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    gc.freeze()
    if enabled:
      gc.enable()


def _exported(module: types.ModuleType) -> list[str]:
  if hasattr(module, '__all__'):
    return list(module.__all__)
  # A package exports what it re-exports of its modules.
  inside = [m for name, m in list(sys.modules.items()) if name.startswith(f'{module.__name__}.')]
  listed = {name for m in inside for name in getattr(m, '__all__', ())}

  def own(obj):
    home = getattr(obj, '__module__', None) or ''
    is_plain = inspect.isclass(obj) or inspect.isfunction(obj)
    return is_plain and (home + '.').startswith(module.__name__ + '.')

  names = {name: obj for name, obj in vars(module).items() if not name.startswith('_')}
  return [name for name, obj in names.items() if name in listed or own(obj)]


def _is_part(obj: Any) -> bool:
  # Protocols cannot be instantiated.
  if is_protocol(obj):
    return False
  if isinstance(obj, type) and not isinstance(obj, types.GenericAlias):
    return True
  # Type aliases such as Callable[..., T] are callable, too.
  if typing.get_origin(obj) is not None or type(obj).__module__ == 'typing':
    return False
  return callable(obj)
