"""Registry of the names that configs may use: exports of t2x's packages and of the user's modules."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import inspect
import os
import sys
import types
import typing
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from t2x.base.errors import error_line
from t2x.config.parse import Import
from t2x.config.protocols import is_protocol
from t2x.config.signature import Part, describe
from t2x.config.trusted import Untrusted, is_library, require_trust
from t2x.config.values import Finding, Place

__all__ = ['Registry']


class Registry:
  """Maps names to parts (classes, functions and callable objects).

  A part is found by its name. If several modules export this name, the end of its full name is needed, such
  as `layers.MLP`.
  """

  def __init__(self):
    self._names: dict[str, dict[str, Any]] = {}
    self._parts: dict[int, Part] = {}

  @classmethod
  def of(cls, modules: Iterable[str], without: Collection[str] = ()) -> 'Registry':
    """Builds a registry of the exports of modules, except some names. Cached by module: inspecting them is
    slow."""
    cached, registry = _read(tuple(modules)), cls()
    registry._names = {
      name: dict(fulls) for name, fulls in cached._names.items() if name not in without
    }
    registry._parts = dict(cached._parts)
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
    """Returns the different parts whose full names end in `name`."""
    objects = self._names.get(name.rpartition('.')[2], {})
    matches = {id(obj) for full, obj in objects.items() if f'.{full}'.endswith(f'.{name}')}
    return [self._parts[i] for i in matches]

  def full_names(self, name: str) -> list[str]:
    """Returns the full names that end in `name`."""
    objects = self._names.get(name.rpartition('.')[2], {})
    return sorted(full for full in objects if f'.{full}'.endswith(f'.{name}'))

  def name_of(self, part: Part) -> str:
    """Returns the shortest name for which `find` returns only this part."""
    if len(self.find(part.name)) == 1:
      return part.name
    fulls = (full for full, obj in self._names[part.name].items() if obj is part.obj)
    return min(fulls, key=len)

  def part_of(self, obj: Any) -> Part | None:
    """Returns the part of an object, or None if it is not registered."""
    part = self._parts.get(id(obj))
    return part if part is not None and part.obj is obj else None

  def names(self) -> list[str]:
    """Returns the names without modules."""
    return list(self._names)

  def load(self, imports: Iterable[Import], folders: Iterable[str]) -> list[Finding]:
    """Imports the user's modules from sys.path, the working directory and trusted folders.

    A folder is added to `sys.path` if a module is found only there: as the last one, so that its modules cannot shadow
    installed ones. So worker processes find it, too.
    """
    findings = []
    search = [os.getcwd(), *folders]
    for statement in imports:
      try:
        self._load(statement, search)
      except Untrusted as error:
        # Trust was denied or is not confirmed: import nothing else.
        return [Finding(statement.place, str(error))]
      except (Exception, SystemExit) as error:
        # A user's module may fail in any way.
        findings.append(Finding(statement.place, _import_problem(statement.module, error)))
    return findings

  def _load(self, statement: Import, search: list[str]) -> None:
    module_name = statement.module
    package, _, last = module_name.rpartition('.')
    try:
      module = _import(module_name, search, statement.place)
    except ModuleNotFoundError as error:
      if not (statement.is_from and error.name == module_name and package):
        raise
      obj = getattr(_import(package, search, statement.place), last, None)
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


def _import(name: str, search: list[str], place: Place) -> types.ModuleType:
  """Imports a user's module.

  Args:
    name: the module.
    search: the working directory and the folders of the configs.
    place: file and line of the import statement.
  """
  top = name.partition('.')[0]
  importlib.invalidate_caches()
  portions = _portions(top)
  if portions != () and (match := _find_module(name, search)):
    folder, file = match
    if not os.path.samefile(folder, search[0]):
      require_trust(folder, str(place), f"imports '{name}' from {file}, which would run its code")
    # Before folders with another part of the namespace package, which may contain a module of the same name.
    tops = [os.path.realpath(os.path.join(entry, top)) for entry in sys.path]
    index = next((i for i, path in enumerate(tops) if path in (portions or ())), len(tops))
    if folder not in sys.path[: index + 1]:
      sys.path.insert(index, folder)
  elif portions is not None and is_library(top):
    folder = os.path.dirname(os.path.realpath(place.file))
    what = f"imports the library '{name}', whose functions the config could call"
    require_trust(folder, str(place), what)
  module = importlib.import_module(name)
  _check_shadow(top, search)
  return module


def _portions(top: str) -> tuple[str, ...] | None:
  """Returns the folders that make up a namespace package; () for another module, None if there is none.

  An editable installation makes every folder of the checkout a namespace package, such as `experiments`.
  """
  module = sys.modules.get(top)
  spec = importlib.util.find_spec(top) if module is None else module.__spec__
  if spec is None:
    return None if module is None else ()
  is_namespace = spec.origin is None and spec.submodule_search_locations is not None
  return tuple(map(os.path.realpath, spec.submodule_search_locations or ())) if is_namespace else ()


def _find_module(name: str, search: list[str]) -> tuple[str, str] | None:
  """Returns the first folder that contains a module, and the file that an import would run."""
  for folder in map(os.path.realpath, search):
    path = folder
    for part in name.split('.'):
      path = os.path.join(path, part)
      for file in (os.path.join(path, '__init__.py'), f'{path}.py'):
        if os.path.isfile(file):
          return folder, file
      if not os.path.isdir(path):
        break
    else:
      return folder, path
  return None


def _check_shadow(top: str, search: list[str]) -> None:
  """Raises ImportError if another module shadows the one in a search folder."""
  loaded = getattr(sys.modules[top], '__file__', None)
  files = [path for folder in search if os.path.isfile(path := os.path.join(folder, f'{top}.py'))]
  if loaded and files and os.path.realpath(loaded) not in map(os.path.realpath, files):
    raise ImportError(f"Python imports '{loaded}' instead of '{files[0]}': rename one of them")


def _import_problem(module: str, error: BaseException) -> str:
  if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
    return (
      f"no module named '{error.name}': install it, or put it into the working directory or the "
      'folder of the config'
    )
  return f"cannot import '{module}': {error_line(error)}"
