"""Atomic file writes, checks of outputs, checksums of folders, and file locks."""

import contextlib
import errno
import fcntl
import itertools
import json
import logging
import os
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from t2x.base.errors import UserError

log = logging.getLogger('t2x')


def write_atomically(path: Path, content: bytes) -> None:
  """Writes a file atomically: writes a temporary file in the same folder and renames it.

  If the process is killed, the old file remains. Concurrent writers do not mix their contents.
  """
  temporary = path.with_name(f'{path.name}.{uuid.uuid4().hex[:8]}.tmp')
  try:
    temporary.write_bytes(content)
    os.replace(temporary, path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise


def unused_path(path: Path) -> Path:
  """Returns the first unused path among NAME, NAME-2, NAME-3, ..."""
  others = (path.with_stem(f'{path.stem}-{number}') for number in itertools.count(2))
  return next(name for name in itertools.chain([path], others) if not os.path.lexists(name))


def check_new_folder(option: str, folder: Path) -> None:
  """Raises UserError if a folder exists and is not empty, or cannot be created.

  Args:
    option: option with the folder, for the message.
    folder: the folder.
  """
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise UserError(f'{folder} already exists: remove it or use another {option}')
  check_folder(option, folder)


def check_folder(option: str, folder: Path) -> None:
  """Raises UserError if files cannot be written to a folder, which need not exist.

  Creates the folder with a file, and removes both: permissions do not show read-only and full disks.

  Args:
    option: option with the folder, for the message.
    folder: the folder.
  """
  place = Path(os.path.abspath(folder))
  nearest = next(path for path in (place, *place.parents) if os.path.lexists(path))
  if not nearest.is_dir():
    raise _cannot_be_written(option, folder, ValueError(f'{nearest} is not a folder'))
  missing = [path for path in (place, *place.parents) if nearest in path.parents]
  try:
    os.fspath(folder).encode()
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place, prefix='.t2x-') as file:
      file.write(bytes(1 << 12))
  except (OSError, ValueError) as error:
    raise _cannot_be_written(option, folder, error) from error
  finally:
    with contextlib.suppress(OSError, ValueError):
      for path in missing:
        path.rmdir()


# Text in each page, table and figure of t2x, within `_MARKED` bytes of the start or end.
MARK = 'Written by t2x'
_MARKED = 1 << 12


def check_output_file(option: str, path: Path) -> None:
  """Raises UserError if a file cannot be written, or exists with content but without `MARK`.

  Args:
    option: option with the file, for the message.
    path: the file. Links are followed; pipes and devices can always be written.
  """
  try:
    os.fspath(path).encode()
    place = _target(path)
    if place.is_dir():
      raise UserError(f'{option} {path} is a folder: pass a file')
    if place.exists() and not place.is_file():
      return
    if not place.parent.is_dir():
      raise UserError(f'{option} {path}: the folder {path.parent} does not exist')
    if place.exists() and not _is_replaceable(place):
      raise UserError(
        f'{option} {path} would replace a file that is no page, table or figure of t2x: choose another file'
      )
  except (OSError, ValueError) as error:
    raise _cannot_be_written(option, path, error) from error
  check_folder(option, place.parent)


def _target(path: Path) -> Path:
  """Resolves links; raises OSError for a link to itself."""
  place = Path(os.path.realpath(path))
  if place.is_symlink():
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
  return place


def _is_replaceable(path: Path) -> bool:
  """Returns whether a regular file is empty or was written by t2x."""
  with path.open('rb') as file:
    size = os.fstat(file.fileno()).st_size
    start = file.read(_MARKED)
    file.seek(max(0, size - _MARKED))
    return size == 0 or MARK.encode() in start or MARK.encode() in file.read()


@contextlib.contextmanager
def output_path(option: str, path: Path) -> Iterator[Path]:
  """Yields the path of a temporary file of the same name, which replaces `path` on exit.

  After a failure the old file remains. The target of a link is replaced; pipes and devices are written directly.

  Raises:
    UserError: the file cannot be written or replaced (see `check_output_file`); the message contains `option`.
  """
  check_output_file(option, path)
  place = _target(path)
  try:
    if place.exists() and not place.is_file():
      yield path
      return
    with tempfile.TemporaryDirectory(dir=place.parent, prefix='.t2x-') as folder:
      temporary = Path(folder, place.name)
      yield temporary
      os.replace(temporary, place)
  except OSError as error:
    raise _cannot_be_written(option, path, error, 1) from error


@contextlib.contextmanager
def output_file(option: str, path: Path) -> Iterator[IO[str]]:
  """Opens a text file that replaces `path` on exit, as `output_path` does."""
  with output_path(option, path) as temporary, temporary.open('w', encoding='utf-8') as file:
    yield file


def _cannot_be_written(
  option: str, path: Path, error: OSError | ValueError, exit_code: int = 2
) -> UserError:
  reason = getattr(error, 'strerror', None) or str(error)
  if isinstance(error, UnicodeError):
    reason = 'the name is not UTF-8'
  return UserError(f'{option} {path} cannot be written: {reason}'.strip(), exit_code)


@contextlib.contextmanager
def file_lock(path: Path, busy: Callable[[], None]) -> Iterator[None]:
  """Holds a file lock, which the operating system releases if the process dies.

  On a file system without locks, logs a warning and does not lock.

  Args:
    path: the lock file.
    busy: called if another process holds the lock; if it returns, the call waits for the lock.
  """
  with path.open('a') as file:
    try:
      _lock_soon(file)
    except BlockingIOError:
      busy()
      fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
      log.warning(
        '%s: the file system has no locks: do not start a second process on this folder',
        path.parent,
      )
    yield


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
  """Holds a file lock if no other process does; yields False otherwise.

  Yields True without a lock on a file system without locks.
  """
  with path.open('a') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      yield False
      return
    except OSError:
      pass
    yield True


def _lock_soon(file: IO[str]) -> None:
  """Locks a file; raises BlockingIOError if another process holds the lock for longer than `is_locked` would."""
  for pause in (0.02, 0.1, 0.3):
    try:
      return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      time.sleep(pause)
  return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool | None:
  """Returns whether a process holds the lock of a file.

  Returns None if the file does not exist or the file system has no locks.
  """
  try:
    # O_NONBLOCK: opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  except OSError:
    return None
  try:
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  except OSError:
    return None
  finally:
    os.close(descriptor)
  return False


CHECKSUMS = 'checksums.json'
# Orbax writes the metadata when it renames the checkpoint, after the checksums.
UNCHECKED = (CHECKSUMS, '_CHECKPOINT_METADATA')


def write_checksums(folder: Path) -> None:
  """Writes the size and CRC-32 of every file in `folder` to the checksum file of the folder."""
  sums = {str(path.relative_to(folder)): _checksum(path) for path in _files(folder)}
  (folder / CHECKSUMS).write_text(json.dumps(sums))


def _files(folder: Path) -> list[Path]:
  return [path for path in folder.rglob('*') if path.is_file() and path.name not in UNCHECKED]


def _checksum(path: Path) -> list[int]:
  """Returns [size in bytes, CRC-32]."""
  size, crc = 0, 0
  with path.open('rb') as file:
    while block := file.read(1 << 22):
      size, crc = size + len(block), zlib.crc32(block, crc)
  return [size, crc]


def find_damage(folder: Path) -> str | None:
  """Compares a folder with its checksums; returns a description of the first damage, or None if intact."""
  try:
    sums = json.loads((folder / CHECKSUMS).read_bytes())
    if not sums:
      return f'{CHECKSUMS} lists no files'
    for name, expected in sums.items():
      actual = _checksum(folder / name)
      if actual != expected:
        what = 'wrong CRC-32' if actual[0] == expected[0] else f'{actual[0]} of {expected[0]} bytes'
        return f'{name}: {what}'
  except (OSError, ValueError, AttributeError, TypeError, LookupError, RecursionError) as error:
    return str(error) or type(error).__name__
  return None
