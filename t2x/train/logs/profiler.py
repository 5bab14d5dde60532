"""Traces steps with `jax.profiler`, and summarises the trace by operation."""

import contextlib
import dataclasses
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from t2x.base.text_table import text_table
from t2x.train.logs.run_logger import RunLogger
from t2x.train.run import TrainingRun

_ROWS = 10


class Profiler(contextlib.AbstractContextManager):
  """Traces the steps of `Trainer.profile_steps` that a process takes; the first of several processes does.

  The trace is written to RUN/profile, for TensorBoard, XProf or Perfetto. The time to start and to write it is
  excluded from the training speed.

  Args:
    run: the run.
    start: step of the checkpoint that the run starts from.
    logger: prints the table of operations.
  """

  def __init__(self, run: TrainingRun, start: int, logger: RunLogger):
    first, last = run.trainer.profile_steps or (0, 0)
    self.steps = range(max(first, start + 1), last + 1) if run.processes.first else range(0)
    self.folder, self.logger = run.folder / 'profile', logger
    self.num_devices = len(run.mesh.local_devices)
    self._active = False

  @contextlib.contextmanager
  def step(self, step: int) -> Iterator[None]:
    """Context of a train step, which must add its results to the logger."""
    if step not in self.steps:
      yield
      return
    if step == self.steps[0]:
      with self.logger.paused():
        self._start()
    with jax.profiler.StepTraceAnnotation('train', step_num=step):
      yield
    if step == self.steps[-1]:
      with self.logger.paused():  # Waits until the devices have finished the step.
        self._stop()
        self.logger.terminal.print(self._report())

  def __exit__(self, *error: object) -> None:
    if self._active:
      self._stop()

  def _start(self) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Events of Python calls would slow down the loop.
    jax.profiler.start_trace(self.folder, profiler_options=options)
    self._active = True

  def _stop(self) -> None:
    self._active = False
    jax.profiler.stop_trace()

  def _report(self) -> str:
    steps = f'steps {self.steps[0]:,} to {self.steps[-1]:,}'
    table = operation_table(read_trace(self.folder), len(self.steps) * self.num_devices)
    return f'profile of {steps}, per step and device; trace in {self.folder}\n{table}'


@dataclasses.dataclass
class Operation:
  """Calls of an operation and their time in milliseconds, without that of the operations inside it."""

  calls: int = 0
  milliseconds: float = 0.0


def read_trace(folder: Path) -> dict[str, Operation]:
  """Returns the operations by name of the newest trace in a folder.

  Args:
    folder: the folder passed to `jax.profiler.start_trace`. Its trace has at most about a million events: trace fewer
      steps of larger programs.
  """
  path = max(folder.glob('plugins/profile/*/*.trace.json.gz'))
  with gzip.open(path) as file:
    return operations(json.load(file)['traceEvents'])


def operations(events: Iterable[Mapping[str, Any]]) -> dict[str, Operation]:
  """Sums the operations of the devices by name.

  These are the events of the threads 'XLA Ops' (TPUs and GPUs) if there are any, else events with an `hlo_op` of
  devices (streams of GPUs), else those of the host (CPUs).

  Args:
    events: `traceEvents` of the Trace Event Format; times in microseconds.
  """
  names: dict[Any, str] = {}
  complete = []
  for event in events:
    phase = event.get('ph')  # The last event is empty.
    if phase == 'M' and event['name'] in ('process_name', 'thread_name'):
      names[event['pid'], event.get('tid')] = event['args']['name']
    elif phase == 'X':
      complete.append(event)

  def thread(event):
    return event['pid'], event['tid']

  with_operation = [event for event in complete if 'hlo_op' in event.get('args', {})]
  chosen = (
    [event for event in complete if names.get(thread(event)) == 'XLA Ops']
    or [e for e in with_operation if names.get((e['pid'], None), '').startswith('/device:')]
    or with_operation
  )
  threads = defaultdict(list)
  for event in chosen:
    threads[thread(event)].append(event)
  result: dict[str, Operation] = defaultdict(Operation)
  for members in threads.values():
    _add_thread(result, members)
  return result


def _add_thread(result: dict[str, Operation], events: list[Mapping[str, Any]]) -> None:
  """Adds the events of a thread; the time of an event inside another, as in a loop, is subtracted from it."""
  around: list[tuple[float, Operation]] = []
  # Of events with the same start, the longest is around the shorter events.
  for event in sorted(events, key=lambda event: (event['ts'], -event['dur'])):
    while around and around[-1][0] <= event['ts']:
      around.pop()
    operation = result[event.get('args', {}).get('hlo_op', event['name'])]
    operation.calls += 1
    operation.milliseconds += event['dur'] / 1e3
    if around:
      around[-1][1].milliseconds -= event['dur'] / 1e3
    around.append((event['ts'] + event['dur'], operation))


def operation_table(summed: Mapping[str, Operation], count: int) -> str:
  """Returns a table of the operations with the largest times, and of their total.

  Args:
    summed: operations by name.
    count: steps times devices, by which calls and times are divided.
  """
  total = sum(operation.milliseconds for operation in summed.values())
  largest = sorted(summed.items(), key=lambda item: (-item[1].milliseconds, item[0]))[:_ROWS]

  def row(name, calls, milliseconds):
    share = milliseconds / total if total else 0.0
    return name, f'{calls / count:.3g}', f'{milliseconds / count:.3f}', f'{share:.1%}'

  rows = [('operation', 'calls', 'ms', 'share')]
  rows += [row(name, operation.calls, operation.milliseconds) for name, operation in largest]
  calls = sum(operation.calls for operation in summed.values())
  return text_table([*rows, row(f'all {len(summed):,}', calls, total)], '<>>>')
