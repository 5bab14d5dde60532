"""When a run stops or saves apart from its plan: signals, the end of its time, a clock; and a thread that
ends the process when the loop stands still."""

import collections
import contextlib
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

from t2x.parallel import Processes
from t2x.signals import answered_by
from t2x.terminal import last_words


@contextlib.contextmanager
def interruptible(
  processes: Processes, max_minutes: float | None = None, began: float | None = None
) -> Iterator[Callable[[int], bool]]:
  """Notes SIGTERM, SIGINT, SIGHUP and the end of the time; the step is finished.

  The time runs from `began` (of time.monotonic; None: now).

  Yields `due(step)`: whether to stop after this step, which all processes answer alike when one of
  them has the signal.
  """
  seen: list[int] = []
  began = time.monotonic() if began is None else began
  end = math.inf if max_minutes is None else began + 60 * max_minutes

  def note(number, frame):
    seen.append(number)
    processes.ask_to_stop()

  def due(step: int) -> bool:
    if time.monotonic() >= end and not seen:
      note(0, None)
    return bool(seen) if processes.count == 1 else processes.reached_stop(step)

  with answered_by(note):
    yield due


class Clock:
  """Says when a checkpoint is due by time, the same on all processes.

  Args:
    processes: those that are this run: the first one's clock counts.
    minutes: between checkpoints; 0: never due.
  """

  def __init__(self, processes: Processes, minutes: float):
    self.processes, self.minutes = processes, minutes
    self.restart()

  def restart(self) -> None:
    """A checkpoint was saved."""
    self.since = time.monotonic()

  def due(self) -> bool:
    """Whether one should be; several processes must ask together."""
    if not self.minutes:
      return False
    due = time.monotonic() - self.since >= 60 * self.minutes
    if self.processes.count == 1:
      return due
    return bool(multihost_utils.broadcast_one_to_all(np.array(due)))


# Waits that are looked at before one is told to be long: the first ones compile.
LEARNING = 5


def _end(message: str) -> None:
  last_words(f't2x: {message}')
  # Nothing else ends data workers that stand still.
  for process in multiprocessing.active_children():
    process.kill()
  os._exit(1)


class Watchdog(contextlib.AbstractContextManager):
  """Told what the loop waits for, it says when that takes far longer than before, and in the end
  gives up: a collective that waits for a lost device, or a file system that is gone, cannot be
  interrupted from Python.

  Args:
    patience: seconds of standing still after which the process is ended.
    factor: how many times the usual a wait may take before that is said.
    least: seconds below which nothing is said.
    say: takes the warnings.
    end: takes the last words, and ends the process with exit code 1.
    interval: seconds between looks.
  """

  def __init__(
    self,
    patience: float,
    *,
    factor: float = 20.0,
    least: float = 30.0,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    end: Callable[[str], None] = _end,
    interval: float = 1.0,
  ):
    self.patience, self.factor, self.least = patience, factor, least
    self.say, self.end, self.interval = say, end, interval
    self._lock = threading.Lock()
    self._what, self._since = '', 0.0
    self._said = False
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
  def waiting(self, what: str) -> Iterator[None]:
    """What happens inside is watched: `what` names it ('the batch of step 7')."""
    with self._lock:
      self._what, self._since, self._said = what, time.monotonic(), False
    try:
      yield
    finally:
      with self._lock:
        self._durations.append(time.monotonic() - self._since)
        self._what = ''

  def current(self) -> tuple[str, float] | None:
    """Returns the name of the current wait and its seconds so far, or None."""
    with self._lock:
      return (self._what, time.monotonic() - self._since) if self._what else None

  def _watch(self) -> None:
    while not self._stopped.wait(self.interval):
      with self._lock:
        what, since, known = self._what, self._since, list(self._durations)
      if not what:
        continue
      waited = time.monotonic() - since
      # Waits are mostly short and at times as long as a whole log interval: the longest counts.
      usual = max(known[1:] or known, default=0.0)
      if waited > self.patience:
        others = f', others at most {usual:.1f} s' if known else ''
        self.end(
          f'{what} has taken {waited:.0f} s{others}: giving up; the last checkpoint is good, '
          'run the same command again to go on'
        )
      elif len(known) < LEARNING:
        continue
      elif not self._said and waited > max(
        self.least, self.factor * statistics.median(known), usual
      ):
        self._said = True
        self.say(f'{what} has taken {waited:.0f} s, others at most {usual:.1f} s: still waiting')
