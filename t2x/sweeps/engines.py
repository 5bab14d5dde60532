"""Trials through engines that have a queue of their own: Slurm (submitit) and Ray, both extras."""

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
from t2x.sweeps.trial import Busy, held, run_trial


def _run(trial: Trial, folder: Path, directory: Path) -> Outcome | None:
  """Runs one trial as a job; None: another job runs it.

  `directory` is the working directory of the sweep: files and modules may be relative to it.
  """
  if directory.is_dir():
    os.chdir(directory)
  try:
    return run_trial(trial, folder)
  except Busy:
    return None


class Engine(Runner):
  """What runs a trial as a job, elsewhere: the shared folder tells what became of it."""

  poll_seconds: float

  @abc.abstractmethod
  def start(self, trials: Sequence[Trial], folder: Path) -> list[Callable[[], bool]]:
    """Hands trials over, and gives for each what tells whether its job is over."""

  def run(self, trials, folder, ended):
    left = {trial.folder: trial for trial in trials}
    jobs: dict[str, Callable[[], bool]] = {}
    over: set[str] = set()
    lost = []
    while left:
      free = [one for one in left.values() if one.folder not in jobs and not _is_held(folder, one)]
      if free:
        jobs |= zip((one.folder for one in free), self.start(free, folder), strict=True)
      time.sleep(self.poll_seconds)
      for name, trial in list(left.items()):
        if outcome := usable_outcome(folder / name):
          ended(left.pop(name), outcome)
        elif name not in jobs:
          continue  # Another machine has it.
        elif name not in over:
          # What a job wrote last may be seen here a little later.
          over |= {name} if jobs[name]() else set()
        elif _is_held(folder, trial):
          over.discard(name)
          del jobs[name]
        else:
          lost.append(left.pop(name).folder)
    if lost:
      names = ', '.join(lost[:3]) + (' ...' if len(lost) > 3 else '')
      raise UserError(
        f'{len(lost)} jobs ended without an outcome ({names}): their logs say why; '
        'run the same command to resume',
        1,
      )


def _is_held(folder: Path, trial: Trial) -> bool:
  """Whether another process runs a trial."""
  try:
    with held(folder / trial.folder):
      return False
  except Busy:
    return True


@dataclasses.dataclass(frozen=True)
class Slurm(Engine):
  """A job array, a task a trial, through submitit.

  Attributes:
    logs: where submitit keeps its files.
    settings: of submitit's AutoExecutor: {'timeout_min': 60, 'slurm_partition': 'gpu',
      'gpus_per_node': 1, 'slurm_array_parallelism': 8}; 'cluster': 'local' runs without Slurm.
    poll_seconds: between looks at the folder.
  """

  logs: Path
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  poll_seconds: float = 5.0

  def start(self, trials, folder):
    settings = dict(self.settings)
    cluster = settings.pop('cluster', None)
    # Without it submitit would run the jobs here.
    if cluster is None and shutil.which('sbatch') is None:
      raise UserError(
        'there is no sbatch on this machine; --setting cluster=local runs the jobs here, all at once'
      )
    submitit = _import('submitit', 'slurm')
    try:
      executor = submitit.AutoExecutor(folder=self.logs, cluster=cluster)
      executor.update_parameters(**settings)
      job = functools.partial(_run, folder=folder.resolve(), directory=Path.cwd())
      jobs = executor.map_array(job, trials)
    except (RuntimeError, NameError, TypeError, submitit.core.utils.FailedJobError) as error:
      raise UserError(f'Slurm took no job: {first_line(error)}', 1) from error
    print(f'{len(jobs)} jobs submitted; their logs are in {self.logs}')
    return [job.done for job in jobs]


@dataclasses.dataclass(frozen=True)
class Ray(Engine):
  """Tasks of a Ray cluster, one a trial. A task that is lost leaves the others going.

  Attributes:
    settings: of `ray.remote`: {'num_cpus': 1, 'num_gpus': 0.5}; 'address' is the cluster's.
    poll_seconds: between looks at the folder.
  """

  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  poll_seconds: float = 1.0

  def start(self, trials, folder):
    ray = _import('ray', 'ray')
    settings = {'num_cpus': 1} | dict(self.settings)
    address = settings.pop('address', None)
    if not ray.is_initialized():
      # The processes of a cluster that runs already have not inherited these.
      own = {name: value for name, value in os.environ.items() if name.startswith('T2X_')}
      ray.init(address=address, log_to_driver=False, runtime_env={'env_vars': own} if own else None)
    remote = ray.remote(**settings)(_run)
    jobs = [remote.remote(one, folder.resolve(), Path.cwd()) for one in trials]
    return [functools.partial(_is_over, ray, job) for job in jobs]


def _is_over(ray: Any, job: Any) -> bool:
  return bool(ray.wait([job], timeout=0)[0])


def _import(name: str, extra: str) -> Any:
  import importlib

  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise UserError(f"this runner needs {name}: pip install 't2x[{extra}]'") from error
