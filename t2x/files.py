"""Files that are whole or not there, checksums that tell a damaged folder from a good one, and locks that
end with the process."""

import contextlib
import fcntl
import json
import logging
import os
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

log = logging.getLogger('t2x')


def write_whole(path: Path, content: bytes) -> None:
  """Writes beside `path` and renames: whoever is killed meanwhile leaves the old file.

  Several may write it at once: the file is that of one of them, whole.
  """
  temporary = path.with_name(f'{path.name}.{uuid.uuid4().hex[:8]}.tmp')
  try:
    temporary.write_bytes(content)
    os.replace(temporary, path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise


@contextlib.contextmanager
def locked(path: Path, busy: Callable[[], None]) -> Iterator[None]:
  """Holds a lock that ends with the process, however that ends.

  Where another process holds it, `busy` is called, which may raise; else it is waited for. On a file
  system without locks there is none.
  """
  with path.open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      busy()
      fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
      log.warning('%s: no file locks here: nothing keeps a second process out', path.parent)
    yield


CHECKSUMS = 'checksums.json'
# Written by Orbax while a checkpoint is moved to its place, thus after the checksums.
UNCHECKED = (CHECKSUMS, '_CHECKPOINT_METADATA')


def write_checksums(folder: Path) -> None:
  """Notes size and CRC-32 of every file in `folder`."""
  sums = {str(path.relative_to(folder)): _checksum(path) for path in _files(folder)}
  (folder / CHECKSUMS).write_text(json.dumps(sums))


def _files(folder: Path) -> list[Path]:
  return [path for path in folder.rglob('*') if path.is_file() and path.name not in UNCHECKED]


def _checksum(path: Path) -> list[int]:
  """[size in bytes, CRC-32]."""
  size, crc = 0, 0
  with path.open('rb') as file:
    while block := file.read(1 << 22):
      size, crc = size + len(block), zlib.crc32(block, crc)
  return [size, crc]


def damage_of(folder: Path) -> str | None:
  """What is wrong with a folder's files; None: nothing."""
  try:
    sums = json.loads((folder / CHECKSUMS).read_bytes())
    for name, expected in sums.items():
      found = _checksum(folder / name)
      if found != expected:
        what = 'content' if found[0] == expected[0] else f'{found[0]} of {expected[0]} bytes:'
        return f'{name}: {what} not as written'
  except (OSError, ValueError, AttributeError) as error:
    return str(error) or type(error).__name__
  return None
