"""Times of a trial (steps, compilation) and the load of its machine."""

import contextlib
import os
import socket
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t2x.base.json_files import is_number
from t2x.sweeps.records import Conditions


def step_seconds(lines: Sequence[Mapping[str, Any]]) -> float | None:
  """Returns the median seconds per step over the log intervals of a run; None if there are too few.

  The first interval, which includes compilation, is left out. So are evaluations and the time that
  training waits for checkpoints.

  Args:
    lines: lines of timing.jsonl, in order.
  """
  intervals = []
  before: Mapping[str, Any] | None = None
  start, waited = 0.0, 0.0
  for line in lines:
    if not is_number(line.get('seconds')):
      continue
    if line['split'] == 'train':
      if before is not None and line['step'] > before['step']:
        seconds = line['seconds'] - start - waited
        intervals.append(seconds / (line['step'] - before['step']))
      before, start, waited = line, line['seconds'], 0.0
    elif before is None or line['step'] == before['step']:
      start = line['seconds']
    elif is_number(line.get('waited')):
      waited += line['waited']
    else:
      # An evaluation inside the interval, whose duration is not logged.
      before = None
  steady = [seconds for seconds in intervals if seconds > 0]
  return statistics.median(steady) if steady else None


def median_rate(lines: Sequence[Mapping[str, Any]]) -> float | None:
  """Returns the median tokens (or examples) per second of the train lines, without the first.

  Args:
    lines: lines of metrics.jsonl, in order.
  """
  rates = [
    value
    for line in [line for line in lines if line['split'] == 'train'][1:]
    for name, value in line.items()
    if name.endswith('_per_second') and is_number(value)
  ]
  return statistics.median(rates) if rates else None


class Compilation(contextlib.AbstractContextManager):
  """Measures the time that JAX spends on tracing and compiling, in all threads."""

  def __init__(self):
    self._spans: list[tuple[float, float]] = []

  def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
    if event.startswith('/jax/core/compile/'):
      now = time.monotonic()
      self._spans.append((now - duration_secs, now))

  def __enter__(self) -> 'Compilation':
    import jax  # Imported here, as reports use this module without JAX.

    jax.monitoring.register_event_duration_secs_listener(self._listen)
    return self

  def __exit__(self, *error: object) -> None:
    import jax

    jax.monitoring.unregister_event_duration_listener(self._listen)

  def seconds(self) -> float:
    """Returns the seconds so far. Nested tracing is counted once."""
    total, end = 0.0, 0.0
    for first, last in sorted(self._spans):
      total += max(0.0, last - max(first, end))
      end = max(end, last)
    return total


@contextlib.contextmanager
def conditions() -> Iterator[list[Conditions]]:
  """Records the load of the machine, and appends it to the yielded list at exit."""
  result: list[Conditions] = []
  start, before = time.time(), os.getloadavg()[0]
  try:
    yield result
  finally:
    result.append(
      Conditions(
        host=socket.gethostname(),
        cpus=os.cpu_count() or 1,
        cores=cores(),
        load_before=before,
        load_after=os.getloadavg()[0],
        began=start,
        ended=time.time(),
      )
    )


def cores() -> int:
  """Returns the number of CPUs that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def at_once(trial: Conditions, trials: Sequence[Conditions]) -> float:
  """Returns the average number of trials that ran on the machine of a trial during its time.

  Args:
    trial: conditions of the trial.
    trials: conditions of all trials, including that trial.
  """
  own = trial.ended - trial.began
  if own <= 0:
    return 1.0
  together = (
    max(0.0, min(trial.ended, other.ended) - max(trial.began, other.began))
    for other in trials
    if other.host == trial.host
  )
  return sum(together) / own
