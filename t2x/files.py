"""Files that are whole or not there, and locks that end with the process."""

import contextlib
import fcntl
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ['locked', 'write_whole']

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
