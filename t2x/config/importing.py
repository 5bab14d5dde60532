"""Imports the user's modules: from the folder of the gin file, then the copies in its run folder,
then the working directory.

A rendered config names the digests of its modules (pins). If a module has changed since, the copy in the run folder is
imported; without one, the config is refused. A module that differs from the copy only in imports of names of t2x that
have moved has not changed: the imports of the copy would fail.
"""

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path

from t2x.base.errors import error_line
from t2x.config.parse import Import, Pin
from t2x.config.sources import digest_of, only_moved_imports, source_of, spec_of
from t2x.config.trusted import is_library, require_trust
from t2x.config.values import Finding

log = logging.getLogger('t2x')

# Folder of the copies of the user's modules in a run folder.
COPIES = 'modules'


class Search:
  """Finds and imports the modules of a config.

  Args:
    folders: folders of the gin files, and the folders that these name, in order.
    pins: digests of modules, which gin files name.
  """

  def __init__(self, folders: Iterable[str], pins: Sequence[Pin]):
    self.pins, self.here = pins, os.path.realpath(os.getcwd())
    self._digests = {pin.module: pin.digest for pin in pins}
    copies = (os.path.join(folder, COPIES) for folder in dict.fromkeys(p.folder for p in pins))
    self.folders = [*map(os.path.realpath, (*folders, *filter(os.path.isdir, copies))), self.here]

  def prepare(self, statement: Import) -> None:
    """Makes a module importable.

    Adds the folder to `sys.path` if no other entry has the module, for worker processes too. The folder comes after all
    other entries, so that its modules cannot shadow installed modules, but before the working directory.

    Raises:
      Untrusted: the user does not trust the folder.
    """
    name, place = statement.module, statement.place
    top = name.partition('.')[0]
    importlib.invalidate_caches()
    match = self._find(name) or (self._find(name.rpartition('.')[0]) if statement.is_from else None)
    portions = _portions(top)
    if portions is not None and not (portions and match) and is_library(top):
      folder = os.path.dirname(os.path.realpath(place.file))
      what = f"imports the library '{name}', whose functions the config could call"
      require_trust(folder, str(place), what)
      return
    if match is None or (portions == () and (match[0] == self.here or not self._is_here(top))):
      return
    folder, file = match
    if folder != self.here:
      require_trust(folder, str(place), f"imports '{name}' from {file}, which would run its code")
    self._add(folder, top, portions or ())

  def load(self, name: str) -> types.ModuleType:
    """Imports a module; raises ImportError if Python imports another module than the first folder contains."""
    module = importlib.import_module(name)
    top = name.partition('.')[0]
    loaded, match = getattr(sys.modules[top], '__file__', None), self._find(top)
    if loaded and match and os.path.isfile(match[1]) and os.path.realpath(loaded) != match[1]:
      source = source_of(top)
      if source is None or source.digest != _digest(match[1]):
        raise ImportError(f"Python imports '{loaded}' instead of '{match[1]}': rename one of them")
    return module

  def check_pins(self) -> list[Finding]:
    """Uses the copies in the run folder if a module has changed; returns one finding per changed module without a copy.

    Raises:
      Untrusted: the user does not trust the copies.
    """
    changed = [pin for pin in self.pins if not self._is_today(pin)]
    for folder in dict.fromkeys(pin.folder for pin in changed):
      copies, pin = os.path.join(folder, COPIES), next(p for p in changed if p.folder == folder)
      if os.path.isdir(copies):
        what = f"imports '{pin.module}' from {copies}, which would run its code"
        require_trust(copies, str(pin.place), what)
        log.info(
          '%s: using the modules in %s, because %s has changed', pin.place, copies, pin.module
        )
        sys.path.insert(0, os.path.realpath(copies))
    importlib.invalidate_caches()
    return [Finding(pin.place, self._changed(pin)) for pin in changed if not self._is_today(pin)]

  def _is_today(self, pin: Pin) -> bool:
    source = source_of(pin.module)
    return source is not None and (
      source.digest == pin.digest or self._has_moved_imports(pin.module, source.content)
    )

  def _is_pinned(self, module: str, file: str) -> bool:
    content = Path(file).read_bytes()
    return digest_of(content) == self._digests[module] or self._has_moved_imports(module, content)

  def _has_moved_imports(self, module: str, content: bytes) -> bool:
    return any(
      has_moved_imports(pin.folder, module, self._digests[module], content)
      for pin in self.pins
      if pin.module == module
    )

  def _changed(self, pin: Pin) -> str:
    spec, digest = spec_of(pin.module), _digest_today(pin)
    file = self._find(pin.module, pinned=False)
    where = 'it is missing'
    if spec is not None and digest is not None:
      where = f'{spec.origin} has the digest {digest}'
      if pin.module in sys.modules:
        where += ' and is already loaded: only a new process can load the recorded version'
    elif file is not None and os.path.isfile(file[1]):
      where = f'{file[1]} has the digest {_digest(file[1])}'
    return (
      f"the module '{pin.module}' has changed since the config was written, with the digest {pin.digest}: {where}; "
      'restore it, or remove this line to use it'
    )

  def _find(self, name: str, pinned: bool = True) -> tuple[str, str] | None:
    """Returns the first folder with a module, and the file that an import would run.

    Args:
      name: the module.
      pinned: skip files whose digest differs from the pin.
    """
    digests = self._digests if pinned else {}
    # With a pin, all matching files are equal, and the working directory needs no trust.
    folders = [self.here, *self.folders] if name in digests else self.folders
    for folder in folders:
      path, module = folder, ''
      for part in filter(None, name.split('.')):
        path, module = os.path.join(path, part), f'{module}.{part}'.lstrip('.')
        files = (os.path.join(path, '__init__.py'), f'{path}.py')
        file = next(filter(os.path.isfile, files), None)
        if file is not None:
          if module not in digests or self._is_pinned(module, file):
            return folder, file
          break
        if not os.path.isdir(path):
          break
      else:
        if path != folder:
          return folder, path
    return None

  def _is_here(self, top: str) -> bool:
    """Returns whether an import would load a module from the working directory."""
    spec = spec_of(top)
    if spec is None or spec.origin is None:
      return False
    path = os.path.realpath(spec.origin)
    return os.path.dirname(path) == self.here or os.path.dirname(os.path.dirname(path)) == self.here

  def _add(self, folder: str, top: str, portions: Sequence[str]) -> None:
    """Adds a folder to `sys.path`, before the working directory and other folders of its namespace package."""
    here = [e for e in sys.path if folder != self.here and os.path.realpath(e or '.') == self.here]
    others = [entry for entry in sys.path if entry != folder and entry not in here]
    tops = [os.path.realpath(os.path.join(entry, top)) for entry in others]
    index = next((i for i, path in enumerate(tops) if path in portions), len(tops))
    after = {*others[index:], *here}
    if folder not in sys.path or after & {*sys.path[: sys.path.index(folder)]}:
      sys.path[:] = [*others[:index], folder, *others[index:], *here]


def _portions(top: str) -> tuple[str, ...] | None:
  """Returns the folders of a namespace package; () for other modules, None for missing modules.

  An editable installation makes every folder of the checkout a namespace package, such as `experiments`.
  """
  module = sys.modules.get(top)
  spec = importlib.util.find_spec(top) if module is None else module.__spec__
  if spec is None:
    return None if module is None else ()
  is_namespace = spec.origin is None and spec.submodule_search_locations is not None
  return tuple(map(os.path.realpath, spec.submodule_search_locations or ())) if is_namespace else ()


def import_problem(module: str, error: BaseException) -> str:
  """Describes why a user's module cannot be imported."""
  if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
    return (
      f"no module named '{error.name}': install it, or put it into the working directory or the "
      'folder of the config'
    )
  return f"cannot import '{module}': {error_line(error)}"


def has_moved_imports(folder: str | Path, module: str, digest: str, content: bytes) -> bool:
  """Returns whether a module differs from its copy in a run folder only in imports of names of t2x that have moved.

  Args:
    folder: the run folder.
    module: name of the module.
    digest: recorded digest, which the copy must have.
    content: content of the module's file today.
  """
  path = Path(folder, COPIES, *module.split('.'))
  for file in (path.with_suffix('.py'), path / '__init__.py'):
    with contextlib.suppress(OSError):
      copy = file.read_bytes()
      if digest_of(copy) == digest and only_moved_imports(copy, content):
        return True
  return False


def _digest(file: str) -> str:
  with open(file, 'rb') as content:
    return digest_of(content.read())


def _digest_today(pin: Pin) -> str | None:
  source = source_of(pin.module)
  return None if source is None else source.digest
