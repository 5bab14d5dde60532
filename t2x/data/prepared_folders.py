"""Prepared data on disk, in folders that are written atomically.

Data is written to a temporary folder beside the final path, which is renamed once complete. An
interruption therefore leaves no partial data, and several processes can prepare the same folder.
The temporary folder of a killed process is removed when another folder is written beside it.
"""

import contextlib
import contextvars
import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.files import file_lock

log = logging.getLogger('t2x')


def cache_folder() -> Path:
  """Returns the folder of prepared data: $T2X_CACHE, or ~/.cache/t2x."""
  return Path(os.environ.get('T2X_CACHE') or Path.home() / '.cache' / 't2x')


# Version of fingerprints, in the metadata of checkpoints: 2 covers all bytes of large files and arrays, the times and
# the known values of time series, and the content of pictures.
FINGERPRINTS = 2
_former = contextvars.ContextVar('former', default=False)


@contextlib.contextmanager
def former_fingerprints() -> Iterator[None]:
  """Context with the fingerprints of version 1, which checkpoints of older runs contain."""
  token = _former.set(True)
  try:
    yield
  finally:
    _former.reset(token)


def is_former() -> bool:
  """Returns whether fingerprints are those of version 1."""
  return _former.get()


def fingerprint(*parts: object) -> str:
  """Returns 16 hexadecimal digits that depend on the text of each part, equal in every process.

  Raises:
    UserError: the text of a part differs between processes.
  """
  text = json.dumps([part if isinstance(part, str) else _stable_repr(part) for part in parts])
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stable_repr(value: Any) -> str:
  """Returns `repr` with functions by module and name, sorted sets and no memory addresses."""
  if isinstance(value, types.FunctionType):
    return _function_name(value)
  if isinstance(value, functools.partial):
    return f'partial{_stable_repr((value.func, value.args, value.keywords))}'
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    names = [field.name for field in dataclasses.fields(value) if field.repr]
    settings = ', '.join(f'{name}={_stable_repr(getattr(value, name))}' for name in names)
    return f'{type(value).__qualname__}({settings})'
  if type(value) is dict:
    items = ', '.join(f'{_stable_repr(k)}: {_stable_repr(v)}' for k, v in value.items())
    return f'{{{items}}}'
  if type(value) is list:
    return f'[{", ".join(map(_stable_repr, value))}]'
  if type(value) is tuple:
    return f'({", ".join(map(_stable_repr, value))}{"," if len(value) == 1 else ""})'
  if type(value) in (set, frozenset):
    return f'{type(value).__name__}({", ".join(sorted(map(_stable_repr, value)))})'
  is_scalar = isinstance(value, type | np.generic)
  if hasattr(value, '__array__') and not is_scalar and not is_former():
    return _array_text(np.asarray(value))
  text = repr(value)
  if not isinstance(value, str) and re.search(r' at 0x[0-9a-fA-F]+', text):
    raise UserError(
      f'an object of {type(value).__module__}.{type(value).__qualname__} has no fingerprint: its '
      'repr contains a memory address; make the class a dataclass, or define __repr__'
    )
  return text


def _array_text(array: np.ndarray) -> str:
  """Returns dtype, shape and a digest of all elements, of which repr leaves out most."""
  content = _stable_repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
  return f'array({array.dtype.str}, {array.shape}, {hashlib.sha256(content).hexdigest()})'


def _function_name(function: types.FunctionType) -> str:
  if '<' in function.__qualname__:
    raise UserError(
      f'the function {function.__module__}.{function.__qualname__} has no fingerprint: it is a '
      'lambda or defined inside a function; define it at the top level of a module'
    )
  # Fingerprints of stored runs name the functions of samples by their former folder.
  module = re.sub(r'^t2x\.samples\.', 't2x.data.samples.', function.__module__)
  return f'{module}.{function.__qualname__}'


def prepare(folder: Path, write: Callable[[Path], object]) -> None:
  """Creates `folder` with `write(temporary folder)` unless it exists.

  Another process that prepares the same folder waits for this process and then uses its result.
  """
  if folder.exists():
    return
  with explain_write_errors(folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(
      folder.with_name(f'{folder.name}.lock'),
      lambda: log.info('waiting for another process to prepare %s', folder),
    ):
      if folder.exists():
        return
      write_folder(folder, write)


def write_folder(folder: Path, write: Callable[[Path], object]) -> None:
  """Fills `folder` with the files of `write(temporary folder)`; existing files are overwritten."""
  folder.parent.mkdir(parents=True, exist_ok=True)
  _remove_leftovers(folder.parent)
  temporary, lock = _temporary_folder(folder)
  try:
    write(temporary)
    for path in temporary.iterdir():
      _flush(path)
    try:
      temporary.rename(folder)
    except OSError as error:
      if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
        raise
      for path in temporary.iterdir():
        path.replace(folder / path.name)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
    os.close(lock)


def _temporary_folder(folder: Path) -> tuple[Path, int]:
  """Creates a folder beside `folder`; returns it and the descriptor that locks it until closed."""
  while True:
    name = f'{folder.name}.tmp-{socket.gethostname()}-{uuid.uuid4().hex[:8]}'
    temporary = folder.with_name(name)
    temporary.mkdir()
    lock = os.open(temporary, os.O_RDONLY)
    # Before it was locked, another process may have removed it as a leftover.
    if _try_lock(lock) is not False and temporary.is_dir():
      return temporary, lock
    os.close(lock)


def _try_lock(descriptor: int) -> bool | None:
  """Locks an open folder. Returns False when another process holds it, None without file locks."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True
  except BlockingIOError:
    return False
  except OSError:
    return None


def _remove_leftovers(parent: Path) -> None:
  """Removes the temporary folders of this machine that no live process has locked."""
  name = re.compile(rf'.*\.tmp-{re.escape(socket.gethostname())}-[0-9a-f]{{8}}')
  for path in filter(lambda path: name.fullmatch(path.name), parent.iterdir()):
    with contextlib.suppress(OSError):  # Another process removes it too.
      lock = os.open(path, os.O_RDONLY)
      try:
        if _try_lock(lock):
          shutil.rmtree(path, ignore_errors=True)
      finally:
        os.close(lock)


@contextlib.contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
  """Converts errors of a full or read-only disk to UserErrors that advise to set T2X_CACHE."""
  try:
    yield
  except (OSError, RuntimeError) as error:
    # array_record raises a RuntimeError that contains the system's message.
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
      if getattr(error, 'errno', None) == number or os.strerror(number) in str(error):
        advice = 'has free space' if number in (errno.ENOSPC, errno.EDQUOT) else 'can be written'
        raise UserError(
          f'cannot write {folder}: {os.strerror(number)}; set T2X_CACHE to a folder that {advice}'
        ) from error
    raise


def _flush(path: Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
