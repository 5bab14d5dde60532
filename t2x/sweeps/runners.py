"""Who runs the trials of a plan: this process, a pool of them, or an engine that has a queue.

All of them go by what lies in the shared folder: a trial that has ended is left alone, one that
another process holds is passed over. So any number of them can work on one sweep.
"""

import abc
import contextlib
import dataclasses
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from t2x.errors import Interrupted, UserError
from t2x.signals import answered_by, asked_to_stop
from t2x.sweeps.records import Outcome, Trial, usable_outcome
from t2x.sweeps.trial import Busy, Programs, run_trial
from t2x.sweeps.vmapped_trials import run_together

# Called with each trial that has ended.
Ended = Callable[[Trial, Outcome], None]


def distinct(trials: Sequence[Trial]) -> list[Trial]:
  """Trials that can be run, each once: two variants may be the same config."""
  found: dict[str, Trial] = {}
  for trial in trials:
    if not trial.problem:
      found.setdefault(trial.folder, trial)
  return list(found.values())


class Runner(abc.ABC):
  """Runs trials whose config.gin stands in their folders."""

  @abc.abstractmethod
  def run(self, trials: Sequence[Trial], folder: Path, ended: Ended) -> None:
    """Runs those of `trials` that have not ended, and returns when all have.

    Args:
      trials: each once (see `distinct`).
      folder: OUT/trials.
      ended: told of each trial when it has ended, whoever ran it.
    """


@dataclasses.dataclass(frozen=True)
class Here(Runner):
  """In this process; the seeds of a variant share what is compiled.

  Attributes:
    turn: of how many workers, which one this is: (0, 1) alone. Each starts elsewhere.
    together: how many trials of one program are trained at once, by vmap; 1: one after another.
    wait_seconds: between looks at trials that others hold.
  """

  turn: tuple[int, int] = (0, 1)
  together: int = 1
  wait_seconds: float = 2.0

  def run(self, trials, folder, ended):
    programs, stopped = Programs(), asked_to_stop()
    waiting = list(self._order(trials))
    while waiting:
      busy = []
      for group in self._groups(waiting):
        outcomes = self._run(group, folder, programs)
        for trial in group:
          if trial.folder in outcomes:
            ended(trial, outcomes[trial.folder])
          else:
            busy.append(trial)
        if stopped():
          raise Interrupted
      if len(busy) == len(waiting):
        time.sleep(self.wait_seconds)
      waiting = busy

  def _run(self, group: Sequence[Trial], folder: Path, programs: Programs) -> dict[str, Outcome]:
    """What became of them; those that others hold are left out."""
    if len(group) > 1:
      return run_together(group, folder, programs)
    (trial,) = group
    try:
      return {trial.folder: run_trial(trial, folder, programs)}
    except Busy:
      return {}

  def _groups(self, trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Neighbours of one program, `together` at a time."""
    for _, same in itertools.groupby(trials, key=lambda trial: trial.program):
      members = list(same)
      for i in range(0, len(members), self.together):
        yield members[i : i + self.together]

  def _order(self, trials: Sequence[Trial]) -> Iterator[Trial]:
    """By program, beginning with this worker's share: the others' come last."""
    index, count = self.turn
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
      groups.setdefault(trial.program, []).append(trial)
    shares = [list(groups.values())[i::count] for i in range(count)]
    own, *others = [*shares[index:], *shares[:index]]
    for group in own:
      yield from group
    # Those that the others come to last are the likeliest to be free.
    for share in others:
      for group in reversed(share):
        yield from reversed(group)


@dataclasses.dataclass(frozen=True)
class Pool(Runner):
  """Processes of this machine, each with its share of the cores, or a device of its own.

  Attributes:
    command: what a worker runs, given its number: `t2x sweep ... --worker I/N`.
    num_processes: workers.
    logs: folder of their logs.
    own: environment variables of this process that are not for the workers.
  """

  command: Callable[[int, int], Sequence[str]]
  num_processes: int
  logs: Path
  own: Sequence[str] = ()

  def run(self, trials, folder, ended):
    waiting = {trial.folder: trial for trial in trials}
    stopped = asked_to_stop()
    with answered_by(lambda *_: None):
      workers = [self._start(i) for i in range(min(self.num_processes, len(waiting)))]
      try:
        while waiting or any(worker.poll() is None for worker in workers):
          for name in list(waiting):
            if outcome := usable_outcome(folder / name):
              ended(waiting.pop(name), outcome)
          if stopped():
            raise Interrupted
          idle = waiting and all(worker.poll() is not None for worker in workers)
          if idle and not any(usable_outcome(folder / one) for one in waiting):
            raise UserError(f'the workers ended early: {self.logs}/worker-*.log say why', 1)
          time.sleep(0.5)
      finally:
        self._stop(workers)

  def _start(self, index: int) -> subprocess.Popen:
    inherited = {name: value for name, value in os.environ.items() if name not in self.own}
    environment = inherited | _share(index, self.num_processes)
    with (self.logs / f'worker-{index}.log').open('ab') as log, _pinned(index, self.num_processes):
      return subprocess.Popen(
        self.command(index, self.num_processes),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
      )

  def _stop(self, workers: Sequence[subprocess.Popen]) -> None:
    running = [worker for worker in workers if worker.poll() is None]
    if running:
      print(f'stopping: {len(running)} workers end their step and save', file=sys.stderr)
    for worker in running:
      worker.terminate()
    for worker in running:
      worker.wait()


def gpus() -> list[str]:
  """The GPUs that this process may use, each as CUDA_VISIBLE_DEVICES names it."""
  import jax

  if jax.default_backend() != 'gpu':
    return []
  ids = enumerate(device.local_hardware_id for device in jax.local_devices())
  # The number among those that CUDA shows to this process.
  found = [index if number is None else number for index, number in ids]
  given = os.environ.get('CUDA_VISIBLE_DEVICES')
  if given is None:
    return [str(number) for number in found]
  # CUDA ignores an entry that is no device, and what follows it.
  valid = itertools.takewhile(lambda name: name not in ('', '-1'), map(str.strip, given.split(',')))
  names = list(valid)
  # A process sees the first part of a divided GPU alone; another process may have the next one.
  if names and names[0].startswith('MIG-'):
    return names
  return [names[number] for number in found if number < len(names)]


def _share(index: int, count: int) -> dict[str, str]:
  """A GPU for each of `count` workers, where there are several."""
  names = gpus()
  if not names:
    return {}
  each = max(len(names) // count, 1)
  own = [names[(index * each + i) % len(names)] for i in range(each)]
  # What JAX was to choose from the parent's devices is chosen.
  share = {'CUDA_VISIBLE_DEVICES': ','.join(own), 'JAX_CUDA_VISIBLE_DEVICES': 'all'}
  if count > len(names):
    share['XLA_PYTHON_CLIENT_MEM_FRACTION'] = f'{0.9 * len(names) / count:.3f}'
  return share


@contextlib.contextmanager
def _pinned(index: int, count: int) -> Iterator[None]:
  """A process started meanwhile keeps to its share of the cores: no thread waits for another's."""
  cores = sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else []
  if len(cores) < count:
    yield
    return
  # Of this thread alone, and of what it starts.
  os.sched_setaffinity(0, cores[index::count])
  try:
    yield
  finally:
    os.sched_setaffinity(0, cores)
