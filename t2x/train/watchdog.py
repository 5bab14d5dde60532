"""A thread that notices when the loop stands still, and ends the process rather than let it hang."""

import collections
import contextlib
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator

from t2x.terminal import last_words

__all__ = ['Watchdog']

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
