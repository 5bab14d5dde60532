"""Leases: one process at a time runs a trial, also across hosts whose file system has no working locks.

The package filelock implements the lease: a file that its holder renews. If the holder died on the same host, another
process takes the lease over at once, else after `T2X_LEASE_SECONDS` without a change of the file, by the clock of the
observing process. A holder that was suspended or cut off from the file system notices the lost lease, and exits.
Creating a file with O_EXCL must be atomic between hosts: local file systems, NFS version 3 or later, Lustre, GPFS.

`.attempt.json` in the folder of a trial exists while a process runs the trial, and after a process was killed: it
counts the processes that died since the last checkpoint.
"""

import contextlib
import dataclasses
import math
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from t2x.base.errors import UserError
from t2x.base.json_files import Damaged, dataclass_from_json, read_json, write_json
from t2x.base.signals import exit_on_signals
from t2x.base.terminal import print_final_line

# Environment variable with the seconds without a sign of life after which a trial is taken over.
SECONDS = 'T2X_LEASE_SECONDS'
_DEFAULT_SECONDS = 180.0
_LOCK, _ATTEMPT = '.trial.lock', '.attempt.json'
# Files of older versions.
_OLD = ('.trial', '.lease-*.json*')


class Busy(Exception):
  """Raised if another process runs the trial."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
  """Content of .attempt.json.

  Attributes:
    host: name of the machine.
    pid: process id.
    step: step of the last checkpoint at its start.
    deaths: how the processes before it died that started at the same checkpoint.
    end: how it died ('SIGKILL'); '' while it runs, or if that is unknown.
  """

  host: str
  pid: int
  step: int
  deaths: tuple[str, ...] = ()
  end: str = ''


class Leases:
  """Acquires leases; remembers since when it has seen those of other processes unchanged.

  Args:
    lost: called in another thread with a message if another process has taken over a trial of this process. The
      default exits with code 1.
  """

  def __init__(self, lost: Callable[[str], None] | None = None):
    self._seconds, self._lost = lease_seconds(), lost or _exit
    self._locks: dict[Path, filelock.SoftFileLease] = {}

  @contextlib.contextmanager
  def hold(self, run: Path) -> Iterator[tuple[str, ...]]:
    """Holds the lease of a trial inside the context.

    Args:
      run: the run folder.

    Yields:
      How the processes of the last attempts died that started at the same checkpoint.

    Raises:
      Busy: another process runs the trial.
    """
    lock = self._locks.get(run)
    if lock is None:
      lock = self._locks[run] = filelock.SoftFileLease(
        run / _LOCK,
        lease_duration=self._seconds,
        on_compromise=lambda _: self._lost(f'{run}: another process has taken over this trial'),
        thread_local=False,
      )
    try:
      lock.acquire(blocking=False)
    except filelock.Timeout:
      raise Busy from None
    except filelock.LeaseSettingsMismatch as error:
      raise UserError(f'{SECONDS} must be equal in all processes: {error}') from error
    try:
      for pattern in _OLD:
        for path in run.glob(pattern):
          path.unlink(missing_ok=True)
      before = deaths(run)
      attempt = Attempt(host=socket.gethostname(), pid=os.getpid(), step=_step(run), deaths=before)
      _write(run, attempt)
      with exit_on_signals(lambda _: self._forget()):
        yield before
    finally:
      (run / _ATTEMPT).unlink(missing_ok=True)
      lock.release()

  def _forget(self) -> None:
    """Ends all attempts in a signal handler, in which the locks cannot be released."""
    for run, lock in self._locks.items():
      if lock.is_locked:
        for name in (_ATTEMPT, _LOCK):
          (run / name).unlink(missing_ok=True)


def lease_seconds() -> float:
  """Returns the seconds without a sign of life after which a trial is taken over, from the environment."""
  text = os.environ.get(SECONDS)
  try:
    seconds = _DEFAULT_SECONDS if text is None else float(text)
  except ValueError:
    seconds = 0.0
  if not 0 < seconds < math.inf:
    raise UserError(f'{SECONDS}={text} must be a number of seconds above 0')
  return seconds


def deaths(run: Path) -> tuple[str, ...]:
  """Returns how the processes died that started at the last checkpoint of a trial; a running one counts."""
  attempt = _read(run)
  if attempt is None or attempt.step != _step(run):
    return ()
  return (*attempt.deaths, attempt.end or f'an unknown signal on {attempt.host}')


def record_death(run: Path, pid: int, how: str) -> bool:
  """Records how a process of this host died in the attempt of a trial; returns whether it ran the trial."""
  attempt = _read(run)
  if attempt is None or attempt.end or (attempt.host, attempt.pid) != (socket.gethostname(), pid):
    return False
  _write(run, dataclasses.replace(attempt, end=how))
  return True


def _exit(message: str) -> None:
  """Ends the process: the files of the trial belong to another process now."""
  print_final_line(f't2x: {message}')
  os._exit(1)


def _step(run: Path) -> int:
  """Returns the step of the last checkpoint; 0 without one."""
  folder = run / 'checkpoints'
  names = os.listdir(folder) if folder.is_dir() else []
  return max((int(name) for name in names if name.isdigit()), default=0)


def _write(run: Path, attempt: Attempt) -> None:
  write_json(run / _ATTEMPT, attempt)


def _read(run: Path) -> Attempt | None:
  """Returns the attempt; None without one, or if the file is damaged."""
  try:
    return dataclass_from_json(Attempt, read_json(run / _ATTEMPT), run / _ATTEMPT)
  except (FileNotFoundError, Damaged):
    return None
