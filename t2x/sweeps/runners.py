"""Runners of trials on this machine: this process, or a pool of processes.

Runners coordinate through files in the shared folder: they skip trials that have ended or whose lease
another process holds. Any number of runners, on any hosts, can work on the same sweep.
"""

import abc
import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from t2x.base import interpreter
from t2x.base.errors import EXIT_INTERRUPTED, Interrupted, UserError, printable
from t2x.base.signals import handle_signals, stop_flag
from t2x.sweeps.leases import Leases, deaths, record_death
from t2x.sweeps.records import Outcome, Trial, usable_outcome
from t2x.sweeps.trial import Programs
from t2x.sweeps.vmapped_trials import run_trials

# Called with each trial that has ended, and its outcome.
OnEnd = Callable[[Trial, Outcome], None]

# Number of workers that may be killed in succession, in the same place of a pool, without running a trial.
_MAX_IDLE_DEATHS = 2
_MAX_TOGETHER = 8


def distinct(trials: Sequence[Trial]) -> list[Trial]:
  """Returns the trials that can run, without duplicates: variants may have equal configs."""
  by_folder: dict[str, Trial] = {}
  for trial in trials:
    if not trial.problem:
      by_folder.setdefault(trial.folder, trial)
  return list(by_folder.values())


def groups_of(trials: Iterable[Trial]) -> list[list[Trial]]:
  """Returns the trials by compiled program, in the order in which the programs first occur."""
  groups: dict[str, list[Trial]] = {}
  for trial in trials:
    groups.setdefault(trial.program, []).append(trial)
  return list(groups.values())


class Runner(abc.ABC):
  """Runs trials whose folders contain a config.gin."""

  @abc.abstractmethod
  def run(self, trials: Sequence[Trial], folder: Path, on_end: OnEnd) -> None:
    """Runs all unfinished trials, and returns after the last one.

    Args:
      trials: trials without duplicates (see `distinct`).
      folder: OUT/trials.
      on_end: called for each trial that ends, including those run by other processes.
    """


@dataclasses.dataclass(frozen=True)
class InProcess(Runner):
  """Runs trials in this process; trials of one program share their compiled functions.

  Attributes:
    turn: index of this worker, and number of workers. Workers start with different trials.
    together: number of trials of one program that are trained with one vmapped step.
    wait_seconds: seconds between checks of trials that other processes run.
  """

  turn: tuple[int, int] = (0, 1)
  together: int = 1
  wait_seconds: float = 2.0

  def run(self, trials, folder, on_end):
    programs, leases, stopped = Programs(), Leases(), stop_flag()
    waiting = list(self._order(trials))
    while waiting:
      busy = []
      for group in self._groups(waiting, folder):
        outcomes = run_trials(group, folder, programs, leases)
        for trial in group:
          if trial.folder in outcomes:
            on_end(trial, outcomes[trial.folder])
          else:
            busy.append(trial)
        if stopped():
          raise Interrupted
      if len(busy) == len(waiting):
        time.sleep(self.wait_seconds)
      waiting = busy

  def _groups(self, trials: Sequence[Trial], folder: Path) -> Iterator[list[Trial]]:
    """Yields groups of up to `together` adjacent trials of the same program.

    A trial whose last process was killed gets a group of one trial, so that it cannot end further trials.
    """
    for _, same in itertools.groupby(trials, key=lambda trial: trial.program):
      members = list(same)
      alone = [trial for trial in members if self.together > 1 and deaths(folder / trial.folder)]
      members = [trial for trial in members if trial not in alone]
      for i in range(0, len(members), self.together):
        yield members[i : i + self.together]
      for trial in alone:
        yield [trial]

  def _order(self, trials: Sequence[Trial]) -> Iterator[Trial]:
    """Yields the trials by program, starting with the share of this worker."""
    index, count = self.turn
    groups = groups_of(trials)
    shares = [groups[i::count] for i in range(count)]
    own, *others = [*shares[index:], *shares[:index]]
    for group in own:
      yield from group
    # Other workers run the last trials of their shares last, so these are likely to be free.
    for share in others:
      for group in reversed(share):
        yield from reversed(group)


@dataclasses.dataclass(frozen=True)
class Pool(Runner):
  """Runs trials in several processes on this machine, each with its share of the cores or GPUs.

  Attributes:
    command: returns the command of a worker, `t2x sweep ... --worker I/N`, given I and N.
    num_processes: number of workers.
    logs: folder of the logs.
    own: environment variables of this process that are not passed to the workers.
  """

  command: Callable[[int, int], Sequence[str]]
  num_processes: int
  logs: Path
  own: Sequence[str] = ()

  def run(self, trials, folder, on_end):
    waiting = {trial.folder: trial for trial in trials}
    stopped = stop_flag()
    with handle_signals(lambda *_: None):
      places = range(min(self.num_processes, len(waiting)))
      workers = {index: self._start(index) for index in places}
      idle_deaths, last_lines = dict.fromkeys(places, 0), set()
      try:
        while waiting or any(worker.poll() is None for worker in workers.values()):
          for name in list(waiting):
            if outcome := usable_outcome(folder / name):
              on_end(waiting.pop(name), outcome)
          if stopped():
            raise Interrupted
          for index, worker in list(workers.items()):
            if worker.poll() in (None, 0, EXIT_INTERRUPTED) or not waiting:
              continue
            killed = _record_deaths(worker, list(waiting.values()), folder)
            idle_deaths[index] = 0 if killed else idle_deaths[index] + 1
            del workers[index]
            # Without a trial, the same error would stop the next worker.
            line = '' if killed or worker.returncode < 0 else self._last_line(index)
            end = f'worker {index} died ({_how(worker)}){killed}' + (f': {line}' if line else '')
            if idle_deaths[index] > _MAX_IDLE_DEATHS or (line and line in last_lines):
              print(end, file=sys.stderr)
              continue
            last_lines.add(line)
            print(f'{end}{"; " if line else ": "}restarted', file=sys.stderr)
            workers[index] = self._start(index)
          # A worker that has just been killed is replaced in the next round.
          over = (worker.poll() in (0, EXIT_INTERRUPTED) for worker in workers.values())
          idle = waiting and all(over)
          if idle and not any(usable_outcome(folder / name) for name in waiting):
            raise UserError(f'the workers ended early: see {self.logs}/worker-*.log', 1)
          time.sleep(0.5)
      finally:
        self._stop(workers.values())

  def _start(self, index: int) -> subprocess.Popen:
    environment = interpreter.environment(**_share(index, self.num_processes))
    environment = {name: value for name, value in environment.items() if name not in self.own}
    with (
      (self.logs / f'worker-{index}.log').open('ab') as log,
      _pin_to_cores(index, self.num_processes),
    ):
      return subprocess.Popen(
        self.command(index, self.num_processes),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
      )

  def _last_line(self, index: int) -> str:
    lines = (self.logs / f'worker-{index}.log').read_text(errors='replace').split('\n')
    return printable(next(filter(None, map(str.strip, reversed(lines))), ''))

  def _stop(self, workers: Iterable[subprocess.Popen]) -> None:
    running = [worker for worker in workers if worker.poll() is None]
    if running:
      print(f'stopping: {len(running)} workers finish their step and save', file=sys.stderr)
    for worker in running:
      worker.terminate()
    for worker in running:
      worker.wait()


def _record_deaths(worker: subprocess.Popen, trials: Sequence[Trial], folder: Path) -> str:
  """Records in the leases of a worker how it died; returns its trials as text, '' without any."""
  killed = [
    f'{trial.variant}, seed {trial.seed}'
    for trial in trials
    if record_death(folder / trial.folder, worker.pid, _how(worker))
  ]
  return f' in {"; ".join(killed)}' if killed else ''


def _how(worker: subprocess.Popen) -> str:
  """Returns the signal that ended a process ('SIGKILL'), or its exit code."""
  code = worker.returncode
  if code >= 0:
    return f'exit code {code}'
  try:
    return signal.Signals(-code).name
  except ValueError:  # A real-time signal has no name.
    return f'signal {-code}'


def default_together() -> int:
  """Returns the number of trials of a program that a process trains with one vmapped step.

  On a CPU one process per core is faster than vmapped steps; on an accelerator vmapped steps are.
  """
  import jax

  return 1 if jax.default_backend() == 'cpu' else _MAX_TOGETHER


def gpus() -> list[str]:
  """Returns the GPUs that this process may use, as entries of CUDA_VISIBLE_DEVICES."""
  import jax

  if jax.default_backend() != 'gpu':
    return []
  ids = enumerate(device.local_hardware_id for device in jax.local_devices())
  # Indices among the GPUs that CUDA shows to this process.
  indices = [index if number is None else number for index, number in ids]
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is None:
    return [str(number) for number in indices]
  # CUDA ignores an invalid entry and all entries after it.
  valid = itertools.takewhile(
    lambda name: name not in ('', '-1'), map(str.strip, visible.split(','))
  )
  names = list(valid)
  # A process sees only the first MIG instance of the list; other processes may use the rest.
  if names and names[0].startswith('MIG-'):
    return names
  return [names[number] for number in indices if number < len(names)]


def _share(index: int, count: int) -> dict[str, str]:
  """Returns the environment variables that assign GPUs to one of `count` workers."""
  names = gpus()
  if not names:
    return {}
  each = len(names) // count
  own = names[index * each : (index + 1) * each]
  # A selection of devices by JAX in the parent process is already applied in `names`.
  return {'CUDA_VISIBLE_DEVICES': ','.join(own), 'JAX_CUDA_VISIBLE_DEVICES': 'all'}


@contextlib.contextmanager
def _pin_to_cores(index: int, count: int) -> Iterator[None]:
  """Pins processes that are started in this context to their share of the CPU cores."""
  cores = sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else []
  if len(cores) < count:
    yield
    return
  # Applies to this thread and the processes that it starts.
  os.sched_setaffinity(0, cores[index::count])
  try:
    yield
  finally:
    os.sched_setaffinity(0, cores)
