"""Single modules of packages that pip cannot install beside today's torch: the archive is downloaded and unpacked."""

import importlib
import subprocess
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / '.pytest_cache' / 'archives'


def unpacked(package: str, version: str) -> Path:
  """Downloads a package without its dependencies, and returns the folder with its top-level modules.

  Preparing a source archive needs wheel and cython in the environment.
  """
  folder = FOLDER / f'{package}-{version}'
  if not folder.exists():
    download = folder.with_suffix('.download')
    options = ['--no-deps', '--no-build-isolation', '--dest', str(download)]
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', *options]
    subprocess.run([*command, f'{package}=={version}'], check=True, timeout=300)
    (archive,) = download.iterdir()
    if archive.suffix == '.whl':
      with zipfile.ZipFile(archive) as file:
        file.extractall(download)
    else:
      with tarfile.open(archive) as file:
        file.extractall(download, filter='data')
    download.rename(folder)
  # A source archive has a folder of its own around the package.
  (init,) = [*folder.glob(f'{package}/__init__.py'), *folder.glob(f'*/{package}/__init__.py')]
  return init.parents[1]


def module(package: str, version: str, name: str, stubs: dict[str, types.ModuleType] | None = None):
  """Imports one module of a downloaded package without running the `__init__` of the packages around it.

  Args:
    package: name of the package.
    version: its version.
    name: dotted name of the module.
    stubs: modules that replace those of the package, by dotted name.
  """
  source = unpacked(package, version)
  with pytest.MonkeyPatch.context() as patch:
    parents = name.split('.')[:-1]
    for depth in range(1, len(parents) + 1):
      parent = types.ModuleType('.'.join(parents[:depth]))
      parent.__path__ = [str(source.joinpath(*parents[:depth]))]  # type: ignore[attr-defined]
      patch.setitem(sys.modules, parent.__name__, parent)
    for stub, value in (stubs or {}).items():
      patch.setitem(sys.modules, stub, value)
      holder, _, attribute = stub.rpartition('.')
      setattr(sys.modules[holder], attribute, value)
    return importlib.import_module(name)
