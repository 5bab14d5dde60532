"""When a run stops or saves apart from its plan: signals, the end of its time, a clock."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

import numpy as np
from jax.experimental import multihost_utils

from t2x.parallel import Processes
from t2x.signals import answered_by

__all__ = ['Clock', 'interruptible']


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
