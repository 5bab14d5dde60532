"""Runners that submit trials as jobs to Slurm (through submitit) or Ray. Both are optional extras."""

import abc
import dataclasses
import functools
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.errors import UserError, first_line
from t2x.sweeps.records import Outcome, Trial, usable_outcome
from t2x.sweeps.runners import Runner
from t2x.sweeps.trial import Busy, locked_trial, run_trial


def _run(trial: Trial, folder: Path, directory: Path) -> Outcome | None:
  """Runs a trial inside a job; returns None if another job runs it.

  `directory` is the working directory of the sweep, as paths of files and modules may be relative.
  """
  if directory.is_dir():
    os.chdir(directory)
  try:
    return run_trial(trial, folder)
  except Busy:
    return None


class Engine(Runner):
  """Runs each trial as a job on any machine, which writes the outcome to the shared folder."""

  poll_seconds: float

  @abc.abstractmethod
  def start(self, trials: Sequence[Trial], folder: Path) -> list[Callable[[], bool]]:
    """Submits trials, and returns a function for each that returns True when its job is over."""

  def run(self, trials, folder, on_end):
    remaining = {trial.folder: trial for trial in trials}
    jobs: dict[str, Callable[[], bool]] = {}
    over: set[str] = set()
    lost = []
    while remaining:
      free = [t for t in remaining.values() if t.folder not in jobs and not _is_locked(folder, t)]
      if free:
        jobs |= zip((trial.folder for trial in free), self.start(free, folder), strict=True)
      time.sleep(self.poll_seconds)
      for name, trial in list(remaining.items()):
        if outcome := usable_outcome(folder / name):
          on_end(remaining.pop(name), outcome)
        elif name not in jobs:
          continue  # Another machine runs it.
        elif name not in over:
          # The last files of a job may become visible here with a delay.
          over |= {name} if jobs[name]() else set()
        elif _is_locked(folder, trial):
          over.discard(name)
          del jobs[name]
        else:
          lost.append(remaining.pop(name).folder)
    if lost:
      names = ', '.join(lost[:3]) + (' ...' if len(lost) > 3 else '')
      raise UserError(
        f'{len(lost)} jobs ended without an outcome ({names}): see their logs; '
        'run the same command again to resume',
        1,
      )


def _is_locked(folder: Path, trial: Trial) -> bool:
  """Returns True if another process runs the trial."""
  try:
    with locked_trial(folder / trial.folder):
      return False
  except Busy:
    return True


@dataclasses.dataclass(frozen=True)
class Slurm(Engine):
  """Runs trials as a Slurm job array with one task per trial, through submitit.

  Attributes:
    logs: folder for the files of submitit.
    settings: parameters of submitit's AutoExecutor: {'timeout_min': 60, 'slurm_partition': 'gpu',
      'gpus_per_node': 1, 'slurm_array_parallelism': 8}; 'cluster': 'local' runs without Slurm.
    poll_seconds: seconds between checks of the folder.
  """

  logs: Path
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  poll_seconds: float = 5.0

  def start(self, trials, folder):
    settings = dict(self.settings)
    cluster = settings.pop('cluster', None)
    # Without sbatch submitit would run the jobs on this machine.
    if cluster is None and shutil.which('sbatch') is None:
      raise UserError(
        'sbatch is not installed on this machine; --setting cluster=local runs all jobs here at once'
      )
    submitit = _import('submitit', 'slurm')
    try:
      executor = submitit.AutoExecutor(folder=self.logs, cluster=cluster)
      executor.update_parameters(**settings)
      job = functools.partial(_run, folder=folder.resolve(), directory=Path.cwd())
      jobs = executor.map_array(job, trials)
    except (RuntimeError, NameError, TypeError, submitit.core.utils.FailedJobError) as error:
      raise UserError(f'Slurm rejected the jobs: {first_line(error)}', 1) from error
    print(f'{len(jobs)} jobs submitted; their logs are in {self.logs}')
    return [job.done for job in jobs]


@dataclasses.dataclass(frozen=True)
class Ray(Engine):
  """Runs each trial as a task of a Ray cluster. A lost task does not stop other tasks.

  Attributes:
    settings: parameters of `ray.remote`: {'num_cpus': 1, 'num_gpus': 0.5}; 'address' of the cluster.
    poll_seconds: seconds between checks of the folder.
  """

  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  poll_seconds: float = 1.0

  def start(self, trials, folder):
    ray = _import('ray', 'ray')
    settings = {'num_cpus': 1} | dict(self.settings)
    address = settings.pop('address', None)
    if not ray.is_initialized():
      # Processes of an existing cluster do not inherit these variables.
      own = {name: value for name, value in os.environ.items() if name.startswith('T2X_')}
      ray.init(address=address, log_to_driver=False, runtime_env={'env_vars': own} if own else None)
    remote = ray.remote(**settings)(_run)
    jobs = [remote.remote(trial, folder.resolve(), Path.cwd()) for trial in trials]
    return [functools.partial(_is_over, ray, job) for job in jobs]


def _is_over(ray: Any, job: Any) -> bool:
  return bool(ray.wait([job], timeout=0)[0])


def _import(name: str, extra: str) -> Any:
  import importlib

  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise UserError(f"this runner requires {name}: pip install 't2x[{extra}]'") from error
