"""Which folders hold code that a config may run.

A gin file can import Python modules. Modules of the user's own, which Python finds by itself or which lie
in the working directory, are imported. Code that arrives together with a gin file (a module beside it, or
in a folder that its `# modules in:` comment names) runs only if its folder is trusted, and so do calls
into libraries, whose functions can do anything with the arguments that a gin file gives them.

A folder is trusted for good once the user passed `--trust` or answered the question on the terminal.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from t2x.errors import UserError
from t2x.files import locked, write_whole

# Trusted folders beside those of the file, joined by os.pathsep; processes started by this one
# inherit them. The value EVERYTHING is `--trust`.
VARIABLE, EVERYTHING = 'T2X_TRUST', '*'


def trusted_file() -> Path:
  """The user's list of trusted folders, one absolute path per line."""
  state = os.environ.get('XDG_STATE_HOME', '')
  home = Path(state) if os.path.isabs(state) else Path.home() / '.local' / 'state'
  return home / 't2x' / 'trusted'


@contextlib.contextmanager
def everything_trusted() -> Iterator[None]:
  """Trusts, and remembers, every folder whose code is imported meanwhile: `--trust`."""
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
  """Returns if a folder is trusted, or becomes so by `--trust` or by an answer on the terminal.

  Args:
    folder: the folder that holds the code.
    where: the place of the import in its gin file.
    what: what it imports from where, and what that allows.

  Raises:
    Untrusted: the folder is not trusted.
  """
  folder = os.path.realpath(folder)
  # A name that others gave could rewrite what the terminal shows.
  what = ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in what)
  granted = os.environ.get(VARIABLE, '')
  if folder in (*granted.split(os.pathsep), *_remembered()):
    return
  if granted != EVERYTHING and not _confirmed(folder, f'{where}: {what}'):
    raise Untrusted(f'{what}; read it, then pass --trust to allow it')
  trust(folder)


def trust(folder: str | os.PathLike) -> None:
  """Remembers that a folder is trusted: for this user, or else for this process and its children."""
  folder = os.path.realpath(folder)
  try:
    # A name with a line break would be read as two folders.
    if folder.splitlines() == [folder]:
      _remember(folder)
      return
  except (OSError, RuntimeError):
    pass  # There is no home, or it cannot be written.
  known = os.environ.get(VARIABLE)
  if known != EVERYTHING and os.pathsep not in folder:
    os.environ[VARIABLE] = os.pathsep.join(filter(None, [known, folder]))


def _remember(folder: str) -> None:
  path = trusted_file()
  path.parent.mkdir(parents=True, exist_ok=True)
  with locked(path.with_name('trusted.lock'), lambda: None):
    folders = _remembered()
    if folder not in folders:
      write_whole(path, b''.join(os.fsencode(f'{one}\n') for one in [*folders, folder]))


def _remembered() -> list[str]:
  try:
    return os.fsdecode(trusted_file().read_bytes()).splitlines()
  except (OSError, RuntimeError):
    return []


def _confirmed(folder: str, question: str) -> bool:
  """Asks on the terminal, where there is one."""
  try:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
      return False
  except (AttributeError, ValueError):
    return False  # There is no such stream, or it is closed.
  print(f'{question}\nTrust {folder!a} from now on? [y/N] ', end='', file=sys.stderr, flush=True)
  return sys.stdin.readline().strip().lower() in ('y', 'yes')


def is_library(name: str) -> bool:
  """Whether a top-level module that Python finds belongs to Python, to t2x, or to an installed package
  that does not require t2x, and so was not made to be named in gin files."""
  if name in ('t2x', '__main__') or name in sys.stdlib_module_names:
    return True
  module = sys.modules.get(name)
  spec = importlib.util.find_spec(name) if module is None else module.__spec__
  if spec is None:
    return False
  places = [spec.origin, *(spec.submodule_search_locations or ())]
  files = [os.path.realpath(place) for place in places if place]
  installed = [os.path.join(os.path.realpath(folder), '') for folder in _installations()]
  if not any(file.startswith(folder) for file in files for folder in installed):
    return False
  distributions = importlib.metadata.packages_distributions().get(name, [])
  return not any(_requires_t2x(distribution) for distribution in distributions)


def _installations() -> list[str]:
  names = ('stdlib', 'platstdlib', 'purelib', 'platlib')
  return [
    *(sysconfig.get_path(name) for name in names),
    *site.getsitepackages(),
    site.getusersitepackages(),
  ]


def _requires_t2x(distribution: str) -> bool:
  requirements = importlib.metadata.requires(distribution) or []
  return any(re.match(r't2x(?![\w.-])', requirement) for requirement in requirements)
