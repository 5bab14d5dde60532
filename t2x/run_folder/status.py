"""Status of a training run, in status.json of its folder.

The training process writes the file when it starts and when it ends, and renews its modification time at regular
intervals (the heartbeat). The file of a killed process has the state 'running', but the lock of its folder is free.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from t2x.base.errors import Interrupted, error_line, printable
from t2x.base.files import write_atomically

log = logging.getLogger('t2x')

STATUS = 'status.json'
# Seconds between two heartbeats.
HEARTBEAT = 30.0
# Seconds without a heartbeat after which a process on another host counts as ended.
SILENT = 180.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
  """Content of status.json.

  Attributes:
    state: 'preempted' if the run was interrupted and the same command resumes it.
    reason: why it was preempted or failed, in one line; '' otherwise.
    host: name of the machine.
    pid: process id.
    kernel: identifies the running kernel of the machine.
    started: when the process started, in seconds since 1970.
    ended: when the process ended; None while it runs.
    num_steps: last step of the run.
    metric: name of the metric that selects the best checkpoint.
    mode: whether the best value of the metric is the smallest or the largest.
  """

  state: Literal['running', 'done', 'preempted', 'failed']
  reason: str = ''
  host: str
  pid: int
  kernel: str
  started: float
  ended: float | None = None
  num_steps: int
  metric: str
  mode: Literal['min', 'max']


@functools.cache
def running_kernel() -> str:
  """Returns an identifier of the running kernel of this machine."""
  try:
    return Path('/proc/sys/kernel/random/boot_id').read_text().strip()
  except OSError:
    return socket.gethostname()


@contextlib.contextmanager
def recorded(
  folder: Path, *, num_steps: int, metric: str, mode: Literal['min', 'max']
) -> Iterator[None]:
  """Writes the status of a run when the context starts and ends, with heartbeats in between.

  Args:
    folder: the run folder; created if it does not exist.
    num_steps: last step of the run.
    metric: name of the metric that selects the best checkpoint.
    mode: whether its best value is the smallest or the largest.
  """
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / STATUS
  status = Status(
    state='running',
    host=socket.gethostname(),
    pid=os.getpid(),
    kernel=running_kernel(),
    started=time.time(),
    num_steps=num_steps,
    metric=metric,
    mode=mode,
  )
  _write(path, status)
  try:
    with _heartbeat(path):
      yield
  except BaseException as error:
    state: Literal['preempted', 'failed'] = 'failed'
    if isinstance(error, Interrupted):
      state = 'preempted'
    reason = printable(error_line(error))
    _write(path, dataclasses.replace(status, state=state, reason=reason, ended=time.time()))
    raise
  _write(path, dataclasses.replace(status, state='done', ended=time.time()))


def _write(path: Path, status: Status) -> None:
  """Writes the file; logs a warning if that fails, for example because the disk is full."""
  content = json.dumps(dataclasses.asdict(status), indent=1, ensure_ascii=False) + '\n'
  try:
    write_atomically(path, content.encode(errors='backslashreplace'))
  except OSError as error:
    log.warning('%s cannot be written: %s', path, error.strerror)


@contextlib.contextmanager
def _heartbeat(path: Path) -> Iterator[None]:
  ended = threading.Event()

  def beat() -> None:
    while not ended.wait(HEARTBEAT):
      with contextlib.suppress(OSError):
        os.utime(path)

  thread = threading.Thread(target=beat, name='t2x-heartbeat', daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
