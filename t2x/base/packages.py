"""Optional packages, and the extras of t2x that install them.

A part declares its imports, `packages = ('tokenizers',)`; `t2x check` reports missing packages.
"""

import importlib
import importlib.util
from collections.abc import Collection, Mapping
from typing import Any

from t2x.base.errors import UserError

# By module; tests/test_dependencies.py compares them with pyproject.toml.
EXTRAS = {
  'babel': 'samples',
  'fontTools': 'samples',
  'jiwer': 'samples',
  'pandas': 'samples',
  'pycocotools': 'samples',
  'sklearn': 'samples',
  'tokenizers': 'samples',
  'datasets': 'data',
  'pyarrow': 'data',
  'zstandard': 'data',
  'matplotlib': 'report',
  'ray': 'launch',
  'submitit': 'launch',
  'mlflow': 'trackers',
  'wandb': 'trackers',
}


def imported(module: str, user: str) -> Any:
  """Imports a module of an optional package.

  Args:
    module: name of the module.
    user: part or command that needs the module, for the message.

  Raises:
    UserError: the package is not installed.
  """
  try:
    return importlib.import_module(module)
  except ImportError as error:
    package = module.partition('.')[0]
    raise UserError(f'{user} needs the package {package}: {command([package])}') from error


def require(users: Mapping[str, Collection[str]]) -> None:
  """Raises UserError if packages are not installed.

  Args:
    users: package -> names of the parts that need it.
  """
  if missing := [package for package in users if not is_installed(package)]:
    names = ', '.join(f'{package} ({", ".join(sorted(users[package]))})' for package in missing)
    raise UserError(f'packages are not installed: {names}: {command(missing)}')


def is_installed(package: str) -> bool:
  """Returns whether a package can be imported, without importing it."""
  return importlib.util.find_spec(package) is not None


def command(packages: Collection[str]) -> str:
  """Returns the command that installs packages, through the extras of t2x where possible."""
  extras = dict.fromkeys(EXTRAS[package] for package in packages if package in EXTRAS)
  others = (package for package in packages if package not in EXTRAS)
  return ' '.join(['pip install', *([f"'t2x[{','.join(extras)}]'"] if extras else []), *others])
