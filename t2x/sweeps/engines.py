"""Runners that submit the trials as jobs to Slurm (through submitit) or Ray. Both are optional extras."""

import abc
import dataclasses
import functools
import os
import shutil
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError, first_line
from t2x.base.packages import imported
from t2x.sweeps.records import Trial, usable_outcome
from t2x.sweeps.runners import InProcess, Runner, default_together, groups_of


def _run(trials: Sequence[Trial], folder: Path, directory: Path) -> None:
  """Runs the trials of one program inside a job.

  `directory` is the working directory of the sweep, as paths of files and modules may be relative.
  """
  if directory.is_dir():
    os.chdir(directory)
  InProcess(together=default_together()).run(trials, folder, lambda *_: None)


class Engine(Runner):
  """Runs each group of trials that share a compiled program as a job on any machine.

  The job writes the outcomes to the shared folder. It waits for trials that other machines run. Lost jobs are repeated
  by the engine, if it is set to, or by the next call.
  """

  poll_seconds: float

  @abc.abstractmethod
  def start(self, groups: Sequence[Sequence[Trial]], folder: Path) -> list[Callable[[], bool]]:
    """Submits groups of trials, and returns a function for each that returns True when its job is over."""

  def run(self, trials, folder, on_end):
    jobs = self.start(groups_of(trials), folder) if trials else []
    remaining = {trial.folder: trial for trial in trials}
    while remaining:
      # Asked before the wait, as the last files of a job may become visible here with a delay.
      jobs = [is_over for is_over in jobs if not is_over()]
      time.sleep(self.poll_seconds)
      for name in list(remaining):
        if outcome := usable_outcome(folder / name):
          on_end(remaining.pop(name), outcome)
      if remaining and not jobs:
        names = ', '.join([*remaining][:3]) + (' ...' if len(remaining) > 3 else '')
        raise UserError(
          f'{len(remaining)} trials have no outcome although their jobs ended ({names}): see the logs of the '
          'jobs; run the same command again to resume',
          1,
        )


@dataclasses.dataclass(frozen=True)
class Slurm(Engine):
  """Runs trials as a Slurm job array with one task per compiled program, through submitit.

  Attributes:
    logs: folder for the files of submitit.
    settings: parameters of submitit's AutoExecutor: {'timeout_min': 60, 'slurm_partition': 'gpu',
      'gpus_per_node': 1, 'slurm_array_parallelism': 8}; 'cluster': 'local' runs without Slurm.
    poll_seconds: seconds between checks of the folder.
  """

  logs: Path
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  poll_seconds: float = 5.0

  def start(self, groups, folder):
    settings = dict(self.settings)
    cluster = settings.pop('cluster', None)
    # Without sbatch submitit would run the jobs on this machine.
    if cluster is None and shutil.which('sbatch') is None:
      raise UserError(
        'sbatch is not installed on this machine; --setting cluster=local runs all jobs here at once'
      )
    submitit = imported('submitit', '--runner slurm')
    try:
      executor = submitit.AutoExecutor(folder=self.logs, cluster=cluster)
      executor.update_parameters(**settings)
      job = functools.partial(_run, folder=folder.resolve(), directory=Path.cwd())
      jobs = executor.map_array(job, groups)
    except (RuntimeError, NameError, TypeError, submitit.core.utils.FailedJobError) as error:
      raise UserError(f'Slurm rejected the jobs: {first_line(error)}', 1) from error
    print(f'{len(jobs)} jobs submitted; their logs are in {self.logs}')
    return [job.done for job in jobs]


@dataclasses.dataclass(frozen=True)
class Ray(Engine):
  """Runs each compiled program as a task of a Ray cluster. A lost task does not stop other tasks.

  Attributes:
    settings: parameters of `ray.remote`: {'num_cpus': 1, 'num_gpus': 0.5}; 'address' of the cluster.
    poll_seconds: seconds between checks of the folder.
  """

  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  poll_seconds: float = 1.0

  def start(self, groups, folder):
    ray = imported('ray', '--runner ray')
    settings = {'num_cpus': 1} | dict(self.settings)
    address = settings.pop('address', None)
    if not ray.is_initialized():
      # Processes of an existing cluster do not inherit these variables.
      own = {name: value for name, value in os.environ.items() if name.startswith('T2X_')}
      ray.init(address=address, log_to_driver=False, runtime_env={'env_vars': own} if own else None)
    remote = ray.remote(**settings)(_run)
    jobs = [remote.remote(group, folder.resolve(), Path.cwd()) for group in groups]
    return [functools.partial(_is_over, ray, job) for job in jobs]


def _is_over(ray: types.ModuleType, job: object) -> bool:
  return bool(ray.wait([job], timeout=0)[0])
