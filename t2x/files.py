"""Atomic file writes, checksums of folders, and file locks."""

import contextlib
import fcntl
import json
import logging
import os
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

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


@contextlib.contextmanager
def file_lock(path: Path, busy: Callable[[], None]) -> Iterator[None]:
  """Holds a file lock, which the system also releases when the process dies.

  Logs a warning and does not lock on a file system without locks.

  Args:
    path: the lock file.
    busy: called if another process holds the lock. It may raise; otherwise the lock is waited for.
  """
  with path.open('w') as file:
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
  with path.open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      yield False
      return
    except OSError:
      pass
    yield True


def _lock_soon(file: IO[str]) -> None:
  """Locks a file; raises BlockingIOError if another process holds the lock for longer than `is_locked` does."""
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
# Orbax writes the metadata when it renames the checkpoint, which is after the checksums.
UNCHECKED = (CHECKSUMS, '_CHECKPOINT_METADATA')


def write_checksums(folder: Path) -> None:
  """Writes size and CRC-32 of every file in `folder` to its checksum file."""
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
  """Compares a folder with its checksums; returns a description of the first damage, or None."""
  try:
    sums = json.loads((folder / CHECKSUMS).read_bytes())
    for name, expected in sums.items():
      actual = _checksum(folder / name)
      if actual != expected:
        what = 'wrong CRC-32' if actual[0] == expected[0] else f'{actual[0]} of {expected[0]} bytes'
        return f'{name}: {what}'
  except (OSError, ValueError, AttributeError) as error:
    return str(error) or type(error).__name__
  return None
