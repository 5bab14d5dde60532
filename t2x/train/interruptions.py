"""Interruptions of training: signals, the time limit, checkpoints by time, and a watchdog for hangs."""

import collections
import contextlib
import itertools
import math
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from jax.experimental import multihost_utils

from t2x.base.signals import handle_signals
from t2x.base.terminal import print_final_line
from t2x.parallel import Processes


@contextlib.contextmanager
def interruptible(
  processes: Processes, max_minutes: float | None = None, start_time: float | None = None
) -> Iterator[Callable[..., bool]]:
  """Handles SIGTERM, SIGINT, SIGHUP and the time limit, without interrupting a step.

  Args:
    processes: the processes of the run.
    max_minutes: time limit in minutes; None for no limit.
    start_time: time.monotonic() at which the time limit starts; None for now.

  Yields:
    A function `stop_requested(time_limit=True)` that returns whether to stop, with the same result on all processes.
    All call it equally often: after each step, and after each batch of an evaluation without the time limit, as a run
    that is always resumed with a limit shorter than its evaluation would never get further.
  """
  signals, calls = list[int](), itertools.count(1)
  start_time = time.monotonic() if start_time is None else start_time
  end_time = math.inf if max_minutes is None else start_time + 60 * max_minutes

  def handle(number, frame):
    signals.append(number)
    processes.ask_to_stop()

  def stop_requested(time_limit: bool = True) -> bool:
    call = next(calls)
    if time_limit and time.monotonic() >= end_time and not signals:
      handle(0, None)
    return bool(signals) if processes.count == 1 else processes.reached_stop(call)

  with handle_signals(handle):
    yield stop_requested


class Clock:
  """Timer for checkpoints, with the same result on all processes.

  Args:
    processes: the processes of the run; the clock of the first one is used.
    minutes: minutes between checkpoints; 0 disables the timer.
  """

  def __init__(self, processes: Processes, minutes: float):
    self.processes, self.minutes = processes, minutes
    self.restart()

  def restart(self) -> None:
    """Restarts the timer, after a checkpoint."""
    self.since = time.monotonic()

  def due(self) -> bool:
    """Returns whether a checkpoint is due; all processes must call it together."""
    if not self.minutes:
      return False
    due = time.monotonic() - self.since >= 60 * self.minutes
    if self.processes.count == 1:
      return due
    return bool(multihost_utils.broadcast_one_to_all(np.array(due)))


# Waits that are measured before the first warning: the first ones compile.
MIN_WAITS = 5


def _end(message: str) -> None:
  print_final_line(f't2x: {message}')
  # Hanging data workers would outlive this process.
  for process in multiprocessing.active_children():
    process.kill()
  os._exit(1)


class Watchdog(contextlib.AbstractContextManager):
  """Thread that warns about long waits and ends the process when it hangs.

  A collective that waits for a lost device, or an unreachable file system, cannot be interrupted from Python.

  Args:
    patience: seconds after which a wait ends the process.
    factor: a wait causes a warning when it takes this many times the median wait.
    min_seconds: shorter waits cause no warning.
    warn: called with each warning.
    end: called with the final message; must end the process, with exit code 1.
    interval: seconds between checks.
  """

  def __init__(
    self,
    patience: float,
    *,
    factor: float = 20.0,
    min_seconds: float = 30.0,
    warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    end: Callable[[str], None] = _end,
    interval: float = 1.0,
  ):
    self.patience, self.factor, self.min_seconds = patience, factor, min_seconds
    self.warn, self.end, self.interval = warn, end, interval
    self._lock = threading.Lock()
    self._activity, self._since = '', 0.0
    self._warned = False
    self._durations: collections.deque[float] = collections.deque(maxlen=200)
    self._stopped = threading.Event()
    self._thread = threading.Thread(target=self._watch, name='t2x-watchdog', daemon=True)

  def __enter__(self) -> 'Watchdog':
    self._thread.start()
    return self

  def __exit__(self, *error: object) -> None:
    self._stopped.set()
    self._thread.join()

  @contextlib.contextmanager
  def waiting(self, activity: str) -> Iterator[None]:
    """Watches the time spent in the context; `activity` names it ('the batch of step 7')."""
    with self._lock:
      self._activity, self._since, self._warned = activity, time.monotonic(), False
    try:
      yield
    finally:
      with self._lock:
        self._durations.append(time.monotonic() - self._since)
        self._activity = ''

  def current(self) -> tuple[str, float] | None:
    """Returns the current activity and its seconds so far, or None."""
    with self._lock:
      return (self._activity, time.monotonic() - self._since) if self._activity else None

  def _watch(self) -> None:
    while not self._stopped.wait(self.interval):
      with self._lock:
        activity, since, durations = self._activity, self._since, list(self._durations)
      if not activity:
        continue
      waited = time.monotonic() - since
      # Most waits are short, but some take a whole log interval: compare with the longest.
      longest = max(durations[1:] or durations, default=0.0)
      if waited > self.patience:
        others = f' (longest before: {longest:.1f} s)' if durations else ''
        self.end(
          f'{activity} has taken {waited:.0f} s{others}: process ended; the last checkpoint is intact, '
          'run the same command to resume'
        )
      elif len(durations) < MIN_WAITS:
        continue
      elif not self._warned and waited > max(
        self.min_seconds, self.factor * statistics.median(durations), longest
      ):
        self._warned = True
        self.warn(
          f'{activity} has taken {waited:.0f} s (longest before: {longest:.1f} s): still waiting'
        )
