"""Leases: one process at a time runs a trial, also across hosts whose file system has no working locks.

The folder of a trial has one lease file per attempt: `.lease-1.json`, `.lease-2.json`, ... The last file
is the current lease. Its holder rewrites it at regular intervals with a counter (the heartbeat), and
marks it when the attempt ends. Another process may start the next attempt if the lease is marked as
ended, or if its content has not changed for `seconds`, measured by the clock of the observing
process; the clocks of two hosts are never compared. It creates the next file, which only one process can do. Lease
files are never deleted, so a process that reads an outdated list of files cannot create one twice. A holder
that finds a later file has lost its lease (it was suspended, or its file system was unavailable) and exits.

On one host a file lock (flock) is faster: the system releases it when the process dies, so that the trial can
be taken over at once. It is only used between processes of one kernel that see the same mount.

Requirements on the file system:

- Creating a file with O_EXCL is atomic between hosts: local file systems, NFS version 3 or later, Lustre,
  GPFS. With gcsfuse (2.8 or later) both hosts may open the file, but only one can write it: closing it fails
  on the second host, or its content is that of the first.
- A new content is visible on all hosts within half of `seconds`. The caches of file attributes of NFS
  (`acregmax`) and gcsfuse (`metadata-cache: ttl-secs`) hold for at most 60 seconds by default.
- Renaming replaces a file without a moment in which a reader sees a part of it.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import logging
import math
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.files import write_atomically
from t2x.base.signals import exit_on_signals
from t2x.base.terminal import print_final_line
from t2x.run_folder.status import running_kernel
from t2x.sweeps.json_files import Damaged, dataclass_from_json

log = logging.getLogger('t2x')

# Environment variable with the seconds without a heartbeat after which a trial is taken over.
SECONDS = 'T2X_LEASE_SECONDS'
_DEFAULT_SECONDS = 180.0
_BEATS = 9
_RELEASED = 'released'
_NAME = re.compile(r'\.lease-(\d{1,9})\.json')


class Busy(Exception):
  """Raised if another process runs the trial."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
  """Content of a lease file.

  Attributes:
    token: random identifier of the attempt.
    host: name of the machine.
    pid: process id.
    kernel: identifies the running kernel of the host.
    mount: identifies the mount of the file system, if its file locks hold between processes; else 0.
    step: step of the last checkpoint at the start of the attempt.
    seconds: seconds without a heartbeat after which the attempt is over.
    beats: number of heartbeats.
    end: '' while it is held, 'released', or how its process died ('SIGKILL').
  """

  token: str
  host: str
  pid: int
  kernel: str
  mount: int
  step: int
  seconds: float
  beats: int = 0
  end: str = ''

  @property
  def death(self) -> str:
    """Description of how the process died, for an attempt that was not released."""
    return self.end or f'an unknown signal on {self.host}'


class Lease:
  """The lease of a trial that this process holds; see `Leases.hold`.

  Attributes:
    deaths: how the processes of the last attempts died that started at the same checkpoint.
  """

  def __init__(self, path: Path, successor: Path, record: Record, deaths: tuple[str, ...]):
    self.deaths = deaths
    self._path, self._successor, self._record = path, successor, record
    # Reentrant, as a signal handler may release the lease at any time.
    self._lock, self._ended = threading.RLock(), threading.Event()

  def create(self) -> None:
    """Creates the file; raises Busy if another process has created it."""
    try:
      descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
      with open(descriptor, 'wb') as file:
        file.write(_content(self._record))
        file.flush()
        os.fsync(descriptor)
      current = _parse(self._path.read_bytes())
    except OSError as error:
      if error.errno in (errno.EEXIST, errno.ESTALE):
        raise Busy from None
      raise
    if current is None or current.token != self._record.token:
      raise Busy

  @contextlib.contextmanager
  def beating(self, lost: Callable[[str], None]) -> Iterator[None]:
    """Rewrites the file at regular intervals inside the context, and releases the lease at exit.

    Args:
      lost: called in another thread if another process has taken over the trial.
    """
    thread = threading.Thread(target=self._beat, args=(lost,), name='lease', daemon=True)
    thread.start()
    try:
      yield
    finally:
      self.release()
      thread.join()

  def release(self) -> None:
    """Marks the attempt as ended by itself."""
    with self._lock:
      if not self._ended.is_set():
        self._ended.set()
        self._write(dataclasses.replace(self._record, end=_RELEASED))

  def _beat(self, lost: Callable[[str], None]) -> None:
    pause = self._record.seconds / _BEATS
    while not self._ended.wait(pause):
      if self._successor.exists():
        return lost(f'{self._path.parent}: another process has taken over this trial')
      with self._lock:
        if self._ended.is_set():
          return None
        done = self._write(dataclasses.replace(self._record, beats=self._record.beats + 1))
      # A file system that was unavailable is tried again soon.
      pause = min(self._record.seconds / _BEATS, pause if done else 1.0)
    return None

  def _write(self, record: Record) -> bool:
    self._record = record
    try:
      write_atomically(self._path, _content(record))
    except OSError as error:
      log.warning('%s cannot be written: %s', self._path, error.strerror)
      return False
    return True


class Leases:
  """Acquires leases, and remembers when it first saw the current state of those of other processes.

  Args:
    lost: called in another thread with a message if another process has taken over a trial of this process. The
      default exits with code 1.
  """

  def __init__(self, lost: Callable[[str], None] | None = None):
    self._seconds = lease_seconds()
    self._lost = lost or _exit
    self._seen: dict[Path, tuple[bytes, float]] = {}
    self._held: list[Lease] = []

  @contextlib.contextmanager
  def hold(self, run: Path) -> Iterator[Lease]:
    """Holds the lease of a trial inside the context.

    Args:
      run: the run folder.

    Raises:
      Busy: another process runs the trial.
    """
    with _file_lock(run / '.trial') as locked:
      number, pause = self._check_free(run, locked)
      step = _last_step(run)
      record = Record(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        kernel=running_kernel(),
        mount=run.stat().st_dev if locked else 0,
        step=step,
        seconds=self._seconds,
      )
      lease = Lease(_path(run, number + 1), _path(run, number + 2), record, deaths(run, step))
      lease.create()
      with self._released_on_signals(lease), lease.beating(self._lost):
        time.sleep(pause)
        # Left by a process that was killed while writing.
        for leftover in run.glob('.lease-*.tmp'):
          leftover.unlink(missing_ok=True)
        yield lease

  def is_held(self, run: Path) -> bool:
    """Returns whether another process runs a trial."""
    try:
      with _file_lock(run / '.trial') as locked:
        self._check_free(run, locked)
    except Busy:
      return True
    return False

  @contextlib.contextmanager
  def _released_on_signals(self, lease: Lease) -> Iterator[None]:
    """Releases all leases if a signal ends the process inside the context, outside of training."""
    self._held.append(lease)
    try:
      with exit_on_signals(lambda _: self._release_all()):
        yield
    finally:
      self._held.remove(lease)

  def _release_all(self) -> None:
    for lease in tuple(self._held):
      lease.release()

  def _check_free(self, run: Path, locked: bool) -> tuple[int, float]:
    """Returns the number of the last lease, and the seconds to wait after the next one is created.

    A holder whose heartbeats were late finds the next lease within these seconds, and exits.

    Raises:
      Busy: a process holds the last lease.
    """
    number = _last(run)
    if number == 0:
      return 0, 0.0
    try:
      content = _path(run, number).read_bytes()
    except OSError as error:
      raise Busy from error
    record = _parse(content)
    if record is not None and record.end:
      return number, 0.0
    # The system has released the file lock of the process, so the process has died.
    own = running_kernel(), run.stat().st_dev
    if record is not None and locked and (record.kernel, record.mount) == own:
      return number, 0.0
    state = str(number).encode() + content
    before, since = self._seen.get(run, (b'', 0.0))
    if before != state:
      self._seen[run] = state, time.monotonic()
      raise Busy
    seconds = self._seconds if record is None else record.seconds
    if time.monotonic() - since < seconds:
      raise Busy
    return number, 2 * seconds / _BEATS


def lease_seconds() -> float:
  """Returns the seconds without a heartbeat after which a trial is taken over, from the environment."""
  text = os.environ.get(SECONDS)
  try:
    seconds = _DEFAULT_SECONDS if text is None else float(text)
  except ValueError:
    seconds = 0.0
  if not 0 < seconds < math.inf:
    raise UserError(f'{SECONDS}={text} must be a number of seconds above 0')
  return seconds


def deaths(run: Path, step: int | None = None) -> tuple[str, ...]:
  """Returns how the processes of the last attempts died that started at the same checkpoint.

  Args:
    run: the run folder.
    step: the step of the last checkpoint; None reads it.
  """
  step = _last_step(run) if step is None else step
  result = []
  for number in range(_last(run), 0, -1):
    record = _read(run, number)
    if record is None or record.end == _RELEASED or record.step != step:
      break
    result.append(record.death)
  return tuple(reversed(result))


def record_death(run: Path, pid: int, how: str) -> bool:
  """Records how a process of this host died in the lease of a trial; returns whether it held the lease."""
  number = _last(run)
  record = _read(run, number) if number else None
  holder = record and (record.host, record.kernel, record.pid)
  if record is None or record.end or holder != (socket.gethostname(), running_kernel(), pid):
    return False
  write_atomically(_path(run, number), _content(dataclasses.replace(record, end=how)))
  return True


def num_attempts(run: Path) -> int:
  """Returns the number of attempts of a trial."""
  return _last(run)


def _exit(message: str) -> None:
  """Ends the process: the files of the trial belong to another process now."""
  print_final_line(f't2x: {message}')
  os._exit(1)


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[bool]:
  """Yields whether a file lock is held; raises Busy if another process holds it."""
  with contextlib.ExitStack() as stack:
    locked = False
    # Without O_TRUNC: two hosts that open it do not change it. It may be impossible to close on gcsfuse.
    with contextlib.suppress(OSError):
      descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
      stack.callback(_close, descriptor)
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = True
      except BlockingIOError:
        raise Busy from None
    yield locked


def _close(descriptor: int) -> None:
  with contextlib.suppress(OSError):
    os.close(descriptor)


def _path(run: Path, number: int) -> Path:
  return run / f'.lease-{number}.json'


def _last(run: Path) -> int:
  """Returns the number of the last lease; 0 without one."""
  names = (_NAME.fullmatch(name) for name in os.listdir(run))
  return max((int(match[1]) for match in names if match), default=0)


def _last_step(run: Path) -> int:
  """Returns the step of the last checkpoint; 0 without one."""
  folder = run / 'checkpoints'
  names = os.listdir(folder) if folder.is_dir() else []
  return max((int(name) for name in names if name.isdigit()), default=0)


def _content(record: Record) -> bytes:
  return (json.dumps(dataclasses.asdict(record), indent=1) + '\n').encode()


def _parse(content: bytes) -> Record | None:
  """Returns the record; None if the content is damaged."""
  try:
    return dataclass_from_json(Record, json.loads(content), Path('.lease'))
  except (Damaged, ValueError):
    return None


def _read(run: Path, number: int) -> Record | None:
  try:
    return _parse(_path(run, number).read_bytes())
  except OSError:
    return None
