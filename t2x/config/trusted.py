"""Trusted folders, whose code a config may run.

A gin file can import Python modules. The user's own modules, which are on `sys.path` or in the working
directory, are always imported. Other code needs trust in its folder: modules in the folder of the gin file,
modules in a folder that its `# modules in:` comment names, and libraries, whose functions can do anything
with the arguments from a gin file.

A folder stays trusted after the user passed `--trust` or confirmed it on the terminal.
"""

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.files import file_lock, write_atomically

__all__ = ['trust', 'trust_everything']

# Further trusted folders, joined by os.pathsep, which child processes inherit. The value EVERYTHING means
# `--trust`.
VARIABLE, EVERYTHING = 'T2X_TRUST', '*'


def trusted_file() -> Path:
  """Returns the path of the user's list of trusted folders, which has one absolute path per line."""
  state = os.environ.get('XDG_STATE_HOME', '')
  home = Path(state) if os.path.isabs(state) else Path.home() / '.local' / 'state'
  return home / 't2x' / 'trusted'


@contextlib.contextmanager
def trust_everything() -> Iterator[None]:
  """Trusts and remembers every folder whose code is imported inside the context, as `--trust` does."""
  before = os.environ.get(VARIABLE)
  os.environ[VARIABLE] = EVERYTHING
  try:
    yield
  finally:
    os.environ.pop(VARIABLE)
    if before is not None:
      os.environ[VARIABLE] = before


class Untrusted(UserError):
  """A gin file imports code whose folder is not trusted."""


def require_trust(folder: str, where: str, what: str) -> None:
  """Checks that a folder is trusted, or trusts it after `--trust` or a confirmation on the terminal.

  Args:
    folder: the folder of the code.
    where: file and line of the import in the gin file.
    what: description of the import and its risk, for the question and the error.

  Raises:
    Untrusted: the folder is not trusted.
  """
  folder = os.path.realpath(folder)
  # Control characters in a foreign file name could change the displayed question.
  what = ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in what)
  granted = os.environ.get(VARIABLE, '')
  if folder in (*granted.split(os.pathsep), *_remembered()):
    return
  if granted != EVERYTHING and not _confirmed(folder, f'{where}: {what}'):
    raise Untrusted(f'{what}; review the code, then pass --trust to allow it')
  trust(folder)


def trust(folder: str | os.PathLike) -> None:
  """Trusts a folder: permanently for this user, or for this process and its children if that fails."""
  folder = os.path.realpath(folder)
  try:
    # A name with a line break would be two lines of the list.
    if folder.splitlines() == [folder]:
      _remember(folder)
      return
  except (OSError, RuntimeError):
    pass  # There is no home directory, or it is not writable.
  current = os.environ.get(VARIABLE)
  if current != EVERYTHING and os.pathsep not in folder:
    os.environ[VARIABLE] = os.pathsep.join(filter(None, [current, folder]))


def _remember(folder: str) -> None:
  path = trusted_file()
  path.parent.mkdir(parents=True, exist_ok=True)
  with file_lock(path.with_name('trusted.lock'), lambda: None):
    folders = _remembered()
    if folder not in folders:
      write_atomically(path, b''.join(os.fsencode(f'{name}\n') for name in [*folders, folder]))


def _remembered() -> list[str]:
  try:
    return os.fsdecode(trusted_file().read_bytes()).splitlines()
  except (OSError, RuntimeError):
    return []


def _confirmed(folder: str, question: str) -> bool:
  """Asks for trust on the terminal; returns False without one."""
  try:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
      return False
  except (AttributeError, ValueError):
    return False  # A stream is missing or closed.
  print(f'{question}\nTrust {folder!a} from now on? [y/N] ', end='', file=sys.stderr, flush=True)
  return sys.stdin.readline().strip().lower() in ('y', 'yes')


def is_library(name: str) -> bool:
  """Returns whether a top-level module on `sys.path` is a library.

  Libraries are the modules of Python, of t2x, and of installed packages that do not require t2x, which were
  not written for use in gin files. A package that is installed in editable mode lies where it is edited.
  """
  if name in ('t2x', '__main__') or name in sys.stdlib_module_names:
    return True
  module = sys.modules.get(name)
  try:
    spec = importlib.util.find_spec(name) if module is None else module.__spec__
  except (ImportError, ValueError):
    return False
  if spec is None:
    return False
  places = [spec.origin, *(spec.submodule_search_locations or ())]
  if not any(map(_is_installed, filter(None, places))):
    return False
  return name not in _requiring_t2x(tuple(sys.path))


def _is_installed(place: str) -> bool:
  """Returns whether a file or folder is that of an installed package."""
  path = os.path.realpath(place)
  if not {'site-packages', 'dist-packages'}.isdisjoint(Path(path).parts):
    return True
  installed = (os.path.join(os.path.realpath(folder), '') for folder in _installations())
  return any(path.startswith(folder) for folder in installed)


def _installations() -> list[str]:
  names = ('stdlib', 'platstdlib', 'purelib', 'platlib')
  return [
    *(sysconfig.get_path(name) for name in names),
    *site.getsitepackages(),
    site.getusersitepackages(),
  ]


@functools.cache
def _requiring_t2x(path: tuple[str, ...]) -> frozenset[str]:
  """Returns the top-level modules of the installed packages that require t2x, with this `sys.path`."""
  names = set[str]()
  for distribution in importlib.metadata.distributions(path=[*path]):
    if any(re.match(r't2x(?![\w.-])', requirement) for requirement in distribution.requires or ()):
      listed = (distribution.read_text('top_level.txt') or '').split()
      names |= {*listed} or {
        file.parts[0].removesuffix('.py') for file in distribution.files or () if file.parts
      }
  return frozenset(names - {'t2x'})
