"""The time that a trial takes, and what its machine did meanwhile."""

import contextlib
import os
import socket
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t2x.sweeps.json_files import is_number
from t2x.sweeps.records import Conditions


def step_seconds(lines: Sequence[Mapping[str, Any]]) -> float | None:
  """Returns the median seconds of a step over the log intervals of a run; None: it has too few.

  The first interval, in which the step is compiled, does not count. Evaluations and the time that
  training waits for checkpoints are left out.

  Args:
    lines: those of timing.jsonl, in order.
  """
  found = []
  before: Mapping[str, Any] | None = None
  began, waited = 0.0, 0.0
  for line in lines:
    if not is_number(line.get('seconds')):
      continue
    if line['split'] == 'train':
      if before is not None and line['step'] > before['step']:
        seconds = line['seconds'] - began - waited
        found.append(seconds / (line['step'] - before['step']))
      before, began, waited = line, line['seconds'], 0.0
    elif before is None or line['step'] == before['step']:
      began = line['seconds']
    elif is_number(line.get('waited')):
      waited += line['waited']
    else:
      # An evaluation within the interval, of which only the end is known.
      before = None
  steady = [one for one in found if one > 0]
  return statistics.median(steady) if steady else None


def median_rate(lines: Sequence[Mapping[str, Any]]) -> float | None:
  """Returns the median of the train lines' tokens (or examples) per second, the first left out.

  Args:
    lines: those of metrics.jsonl, in order.
  """
  rates = [
    value
    for line in [line for line in lines if line['split'] == 'train'][1:]
    for name, value in line.items()
    if name.endswith('_per_second') and is_number(value)
  ]
  return statistics.median(rates) if rates else None


class Compilation(contextlib.AbstractContextManager):
  """Measures the time in which JAX traces and compiles, in whatever thread."""

  def __init__(self):
    self._spans: list[tuple[float, float]] = []

  def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
    if event.startswith('/jax/core/compile/'):
      now = time.monotonic()
      self._spans.append((now - duration_secs, now))

  def __enter__(self) -> 'Compilation':
    import jax  # Reports, which use the rest of this file, do without it.

    jax.monitoring.register_event_duration_secs_listener(self._listen)
    return self

  def __exit__(self, *error: object) -> None:
    import jax

    jax.monitoring.unregister_event_duration_listener(self._listen)

  def seconds(self) -> float:
    """Of the process so far. Functions that are traced within another one count once."""
    total, end = 0.0, 0.0
    for first, last in sorted(self._spans):
      total += max(0.0, last - max(first, end))
      end = max(end, last)
    return total


@contextlib.contextmanager
def conditions() -> Iterator[list[Conditions]]:
  """Notes the load of the machine; what is yielded holds the conditions afterwards."""
  found: list[Conditions] = []
  began, before = time.time(), os.getloadavg()[0]
  try:
    yield found
  finally:
    found.append(
      Conditions(
        host=socket.gethostname(),
        cpus=os.cpu_count() or 1,
        cores=cores(),
        load_before=before,
        load_after=os.getloadavg()[0],
        began=began,
        ended=time.time(),
      )
    )


def cores() -> int:
  """CPUs that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def at_once(one: Conditions, others: Sequence[Conditions]) -> float:
  """Returns how many trials of `others` ran on the machine of `one`, on average over its time.

  Args:
    one: the conditions of a trial.
    others: those of all trials, that one included.
  """
  own = one.ended - one.began
  if own <= 0:
    return 1.0
  together = (
    max(0.0, min(one.ended, other.ended) - max(one.began, other.began))
    for other in others
    if other.host == one.host
  )
  return sum(together) / own
