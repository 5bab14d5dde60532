"""Contenders of a benchmark as processes that stay alive and work in turnand share the load of the machine."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping


def serve(
  take: Callable[[int], object],
  *,
  warm_up: int = 8,
  clock: Callable[[], float] = time.perf_counter,
  **ready: object,
) -> None:
  """Answers each number on stdin with the seconds that `take(number)` needs.

  Args:
    take: does the work `number` times and waits for the result.
    warm_up: repetitions before the first measurement.
    clock: returns seconds; `time.process_time` leaves out the time that other work takes.
    ready: printed once before the first request.
  """
  take(warm_up)
  print(json.dumps(ready), flush=True)
  for line in sys.stdin:
    began = clock()
    take(int(line))
    print(json.dumps({'seconds': clock() - began}), flush=True)


class Worker:
  """A process that runs `serve`.

  Args:
    command: arguments of Python.

  Attributes:
    ready: what it printed before the first request.
  """

  def __init__(self, command: list[str]):
    self._process = subprocess.Popen(
      [sys.executable, *command],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      bufsize=1,
    )
    self.ready = self._read()

  def _read(self) -> dict:
    assert self._process.stdout is not None
    while not (line := self._process.stdout.readline()).startswith('{'):
      if not line:
        raise SystemExit(f'{" ".join(map(str, self._process.args))} failed')
    return json.loads(line)

  def milliseconds(self, times: int) -> float:
    """Returns the milliseconds of one of `times` repetitions."""
    assert self._process.stdin is not None
    self._process.stdin.write(f'{times}\n')
    return 1e3 * self._read()['seconds'] / times

  def close(self) -> None:
    """Ends the process."""
    assert self._process.stdin is not None
    self._process.stdin.close()
    self._process.wait()


def compare(workers: Mapping[str, Worker], rounds: int) -> dict[str, dict]:
  """Measures the workers in alternating rounds of about a second, and ends them.

  Returns:
    For each worker: median, fastest and slowest round in milliseconds, its time divided by that of 't2x' (the speed
    of t2x relative to the worker), and the load of the machine.
  """
  repeat = {name: max(1, round(1000 / worker.milliseconds(1))) for name, worker in workers.items()}
  times: dict[str, list[float]] = {name: [] for name in workers}
  for _ in range(rounds):
    for name, worker in workers.items():
      times[name].append(worker.milliseconds(repeat[name]))
  for worker in workers.values():
    worker.close()
  medians = {name: statistics.median(rows) for name, rows in times.items()}
  return {
    name: {
      'milliseconds': round(medians[name], 1),
      'fastest': round(min(times[name]), 1),
      'slowest': round(max(times[name]), 1),
      't2x_speed': round(medians[name] / medians['t2x'], 2) if 't2x' in medians else '',
      'load': round(os.getloadavg()[0], 1),
    }
    for name in workers
  }
