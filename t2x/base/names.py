"""The table of t2x's public names: name -> the module whose `__all__` lists it, read without importing any module.

The table is read from the folders: a file that moves from one package to another takes its names along.
"""

import ast
import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).parents[1]

# The packages of the core whose names configs may use.
CORE = tuple(
  f't2x.{name}' for name in ('layers', 'models', 'data', 'tasks', 'decode', 'parallel', 'train')
)
# Files that connect a domain with the lab, which finds them by file name.
_LAB_FILES = ('interop.py', 'look.py')

_LISTED = re.compile(r'^__all__ = (\[.*?\])', re.MULTILINE | re.DOTALL)
# Protocols, which have no instances; and assigned names with a capital, which are constants or type aliases.
_NO_PARTS = re.compile(
  r'^class (\w+)(?:\[.*?\])?\([^)]*\bProtocol\b|^([A-Z]\w*)(?:: .+?)? = ', re.MULTILINE
)


def packages() -> tuple[str, ...]:
  """Returns the packages whose names configs may use: those of the core, the samples, and each domain."""
  domains = (_dotted(folder) for folder in sorted((ROOT / 'domains').glob('*')))
  return tuple(name for name in (*CORE, 't2x.samples', *domains) if _init(name).is_file())


def domain_modules(file: str) -> list[ModuleType]:
  """Imports the files of one name in the folders of the domains, which extend the lab.

  Args:
    file: 'interop' or 'look'.
  """
  paths = sorted((ROOT / 'domains').glob(f'*/{file}.py'))
  return [importlib.import_module(_dotted(path.with_suffix(''))) for path in paths]


class Name(NamedTuple):
  """A name in the `__all__` of a module.

  Attributes:
    name: the name.
    module: the full name of the module.
    is_part: False for protocols, constants and type aliases, which configs cannot name.
  """

  name: str
  module: str
  is_part: bool


@functools.cache
def names(package: str) -> tuple[Name, ...]:
  """Returns the names that the modules of a package list, or those of one module.

  Args:
    package: the full name of a package or module of t2x.
  """
  found: list[Name] = []
  for module, path in _modules(package).items():
    text = path.read_text(encoding='utf-8')
    if listed := _LISTED.search(text):
      no_parts = {name for pair in _NO_PARTS.findall(text) for name in pair}
      found += [Name(name, module, name not in no_parts) for name in ast.literal_eval(listed[1])]
  return tuple(found)


def import_line(package: str, entry: Name) -> str:
  """Returns the import of a name: from its package if that exports the names of the module, else from the module."""
  is_exported = f'from {entry.module} import *' in _init(package).read_text(encoding='utf-8')
  return f'from {package if is_exported else entry.module} import {entry.name}'


def exports(
  package: str, former: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
  """Returns `__getattr__` and `__dir__` of a package, whose names are those that its modules list.

  A module is imported when one of its names is first used, so that a program loads the parts that it names, and the
  modules of a package can import each other in any order. Type checkers read the star imports beside the call.

  Args:
    package: the full name of the package.
    former: as in `missing`.
  """
  absent = missing(package, former)

  def homes() -> dict[str, str]:
    return {entry.name: entry.module for entry in names(package)}

  def __getattr__(name: str) -> Any:
    if name == '__all__':
      return [*homes()]
    module = homes().get(name)
    if module is None:
      return (
        importlib.import_module(f'{package}.{name}') if _is_module(package, name) else absent(name)
      )
    value = getattr(importlib.import_module(module), name)
    setattr(sys.modules[package], name, value)
    return value

  return __getattr__, lambda: [*homes()]


def missing(
  package: str, former: Mapping[str, str] = MappingProxyType({})
) -> Callable[[str], NoReturn]:
  """Returns the `__getattr__` of a package or module, for names that it does not have.

  It raises an ImportError with the line to write for a name of another package, to which its module may have moved.
  `from PACKAGE import NAME` and `PACKAGE.NAME` both call it; the import statement would replace the message of an
  AttributeError.

  Args:
    package: the full name of the package or module.
    former: names that no longer exist -> what to write instead.
  """

  def __getattr__(name: str) -> NoReturn:
    if name in former:
      raise ImportError(f'{package} has no {name} any more: {former[name]}')
    if not name.startswith('_') and not _is_module(package, name):
      for other in packages():
        for entry in names(other):
          if entry.name == name:
            raise ImportError(f'{name} is not in {package}: write `{import_line(other, entry)}`')
    raise AttributeError(f'module {package!r} has no attribute {name!r}')

  return __getattr__


def _modules(package: str) -> dict[str, Path]:
  path = _path(package)
  if not path.is_dir():
    return {package: path.with_suffix('.py')}
  skipped = ('__init__.py', *(_LAB_FILES if path.parent.name == 'domains' else ()))
  files = sorted(file for file in path.rglob('*.py') if file.name not in skipped)
  return {_dotted(file.with_suffix('')): file for file in files}


def _is_module(package: str, name: str) -> bool:
  path = _path(package) / name
  return path.is_dir() or path.with_suffix('.py').is_file()


def _path(name: str) -> Path:
  return ROOT.joinpath(*name.split('.')[1:])


def _init(package: str) -> Path:
  return _path(package) / '__init__.py'


def _dotted(path: Path) -> str:
  return '.'.join(('t2x', *path.relative_to(ROOT).parts))
