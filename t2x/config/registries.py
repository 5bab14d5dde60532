"""Registry of the names that configs may use: those of the table of t2x's names, and exports of the user's modules."""

import contextlib
import functools
import gc
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from t2x.base.names import CORE, names
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
  the end of its full name is needed, such as `layers.MLP`. The names of t2x are those of the table in `t2x.base.names`:
  a part is imported when it is first found, and no result depends on which modules are loaded.
  """

  def __init__(self, library: '_Library | None' = None):
    self._library = library or _Library({})
    # The exports of the user's modules: name -> full name -> object, and their parts.
    self._names: dict[str, dict[str, Any]] = {}
    self._parts: dict[int, Part] = {}

  @classmethod
  def of(cls, packages: Iterable[str], without: Collection[str] = ()) -> 'Registry':
    """Builds a registry of the parts of packages, except some names. Cached by packages, so that parts are described
    once."""
    return cls(_library(tuple(packages), frozenset(without)))

  def add(self, module: types.ModuleType, alias: str | None = None) -> None:
    """Adds the exports of a module: its `__all__`, else the public classes and functions that it defines, and what it
    re-exports of the `__all__` of its modules."""
    for name in _exported(module):
      self.add_object(alias or module.__name__, name, getattr(module, name))

  def add_object(self, module: str, name: str, obj: object) -> None:
    """Adds an object if it is callable."""
    if _is_part(obj):
      self._names.setdefault(name, {})[f'{module}.{name}'] = obj
      if self.part_of(obj) is None:
        self._parts[id(obj)] = describe(obj, name)

  def find(self, name: str) -> list[Part]:
    """Returns the different parts whose full names end in `name`; only those of the user's modules if there are any, so
    that a new name of t2x changes no config."""
    objects = self._names.get(name.rpartition('.')[2], {})
    matches = [self._part(obj) for full, obj in objects.items() if f'.{full}'.endswith(f'.{name}')]
    users = [part for part in matches if not self._library.has(part)]
    return [*dict.fromkeys(users or [*matches, *self._library.find(name)])]

  def full_names(self, name: str) -> list[str]:
    """Returns the full names that end in `name`."""
    objects = self._names.get(name.rpartition('.')[2], {})
    users = (full for full in objects if f'.{full}'.endswith(f'.{name}'))
    return sorted({*users, *self._library.full_names(name)})

  def name_of(self, part: Part) -> str:
    """Returns the shortest name for which `find` returns only this part."""
    if self.find(part.name) == [part]:
      return part.name
    return min(self._full_names_of(part), key=len)

  def hidden_by(self, part: Part) -> list[str]:
    """Returns the full names of the parts of t2x that a part of the user's modules hides."""
    if self._library.has(part):
      return []
    objects = self._names[part.name]
    users = (full for full, obj in objects.items() if self._library.has(self._part(obj)))
    return sorted({*users, *self._library.full_names(part.name)})

  def home_of(self, part: Part) -> tuple[str, str]:
    """Returns the module and qualified name of a user's part; '' and the name for a part of t2x."""
    obj = part.obj
    if self._library.has(part):
      return '', part.name
    module, name = getattr(obj, '__module__', None), getattr(obj, '__qualname__', '')
    target = sys.modules.get(module or '')
    for step in name.split('.'):
      target = getattr(target, step, None)
    if target is obj:
      return str(module), name
    # A nameless object, such as a partial function, has the name of its module's variable.
    fulls = (full.rpartition('.') for full in self._full_names_of(part))
    module, _, name = min(
      (full for full in fulls if full[0] in sys.modules), default=('', '', part.name)
    )
    return module, name

  def exported_by(self, part: Part) -> set[str]:
    """Returns the modules of the user's that export a part."""
    if self._library.has(part):
      return set()
    return {full.rpartition('.')[0] for full in self._full_names_of(part)}

  def part_of(self, obj: object) -> Part | None:
    """Returns the part of an object, or None if it is not registered."""
    part = self._parts.get(id(obj))
    return part if part is not None and part.obj is obj else self._library.part_of(obj)

  def names(self) -> list[str]:
    """Returns the names without modules."""
    return [*dict.fromkeys([*self._library.names, *self._names])]

  def _part(self, obj: object) -> Part:
    part = self.part_of(obj)
    assert part is not None, 'an added object has a part'
    return part

  def _full_names_of(self, part: Part) -> list[str]:
    objects = self._names.get(part.name, {})
    users = [full for full, obj in objects.items() if obj is part.obj]
    return users + (self._library.full_names(part.name) if self._library.has(part) else [])

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


class _Library:
  """The parts of t2x, imported and described when they are first found.

  Args:
    names: name -> package -> the module that defines it.
  """

  def __init__(self, names: Mapping[str, Mapping[str, str]]):
    self.names = names
    self._parts: dict[tuple[str, str], Part | None] = {}

  def has(self, part: Part) -> bool:
    """Returns whether a part is one of t2x's."""
    return part in self._parts.values()

  def find(self, name: str) -> list[Part]:
    """Returns the different parts whose full names end in `name`."""
    last = name.rpartition('.')[2]
    found = (self._load(last, module) for module in self._matches(name).values())
    return [*dict.fromkeys(part for part in found if part is not None)]

  def full_names(self, name: str) -> list[str]:
    """Returns the full names, PACKAGE.NAME, that end in `name`."""
    last = name.rpartition('.')[2]
    return [f'{package}.{last}' for package in self._matches(name)]

  def part_of(self, obj: object) -> Part | None:
    """Returns the part of an object, or None."""
    name = getattr(obj, '__name__', None)
    homes = self.names.get(name, {}) if isinstance(name, str) else {}
    parts = (self._load(str(name), module) for module in homes.values())
    return next((part for part in parts if part is not None and part.obj is obj), None)

  def _matches(self, name: str) -> dict[str, str]:
    """Returns package -> module of the parts with a name."""
    prefix, _, last = name.rpartition('.')
    homes = self.names.get(last, {})
    # Configs name a part that has left the core by any package of the core: its file may have been there.
    is_core = any(f'.{package}'.endswith(f'.{prefix}') for package in CORE)
    return {
      package: module
      for package, module in homes.items()
      if f'.{package}.{last}'.endswith(f'.{name}') or (is_core and package not in CORE)
    }

  def _load(self, name: str, module: str) -> Part | None:
    if (module, name) not in self._parts:
      with contextlib.nullcontext() if module in sys.modules else _permanent_objects():
        obj = getattr(importlib.import_module(module), name)
      self._parts[module, name] = describe(obj, name) if _is_part(obj) else None
    return self._parts[module, name]


@functools.cache
def _library(packages: tuple[str, ...], without: frozenset[str]) -> _Library:
  table: dict[str, dict[str, str]] = {}
  for package in packages:
    for name, module in _homes(package).items():
      if name not in without:
        table.setdefault(name, {})[package] = module
  return _Library(table)


def _homes(package: str) -> dict[str, str]:
  """Returns name -> module of the parts of a package; other modules than t2x's are imported."""
  if package.startswith('t2x.'):
    return {entry.name: entry.module for entry in names(package) if entry.is_part}
  return dict.fromkeys(_exported(importlib.import_module(package)), package)


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

  def is_defined_here(obj):
    home = getattr(obj, '__module__', None) or ''
    is_plain = inspect.isclass(obj) or inspect.isfunction(obj)
    return is_plain and (home + '.').startswith(module.__name__ + '.')

  names = {name: obj for name, obj in vars(module).items() if not name.startswith('_')}
  return [name for name, obj in names.items() if name in listed or is_defined_here(obj)]


def _is_part(obj: object) -> bool:
  # Protocols cannot be instantiated.
  if is_protocol(obj):
    return False
  if isinstance(obj, type) and not isinstance(obj, types.GenericAlias):
    return True
  # Type aliases such as Callable[..., T] are callable, too.
  if typing.get_origin(obj) is not None or type(obj).__module__ == 'typing':
    return False
  return callable(obj)
