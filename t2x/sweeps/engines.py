"""Trials through engines that have a queue of their own: Slurm (submitit) and Ray, both extras."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t2x import config as config_lib
from t2x.errors import UserError
from t2x.sweeps.records import Outcome, Trial, read_outcome
from t2x.sweeps.runners import Ended, Runner, pending, tell_ended
from t2x.sweeps.trial import Busy, run_trial

__all__ = ['Ray', 'Slurm']

_Load = Callable[..., config_lib.Config]


def _run(trial: Trial, folder: Path, load: _Load) -> Outcome | None:
  """One trial as a job; None: another one is at it."""
  try:
    return run_trial(trial, folder, load)
  except Busy:
    return None


@dataclasses.dataclass(frozen=True)
class Slurm(Runner):
  """A job array, a task a trial, through submitit.

  Attributes:
    load: reads gin files.
    logs: where submitit keeps its files.
    settings: of submitit's AutoExecutor: {'timeout_min': 60, 'slurm_partition': 'gpu',
      'gpus_per_node': 1, 'slurm_array_parallelism': 8}; 'cluster': 'local' runs without Slurm.
    poll_seconds: between looks at the folder.
  """

  load: _Load
  logs: Path
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  poll_seconds: float = 5.0

  def run(self, trials, folder, ended):
    submitit = _import('submitit', 'slurm')
    waiting = pending(trials, folder)
    tell_ended(trials, waiting, folder, ended)
    if not waiting:
      return
    settings = dict(self.settings)
    try:
      executor = submitit.AutoExecutor(folder=self.logs, cluster=settings.pop('cluster', None))
      executor.update_parameters(**settings)
      jobs = executor.map_array(
        functools.partial(_run, folder=folder.resolve(), load=self.load), waiting
      )
    except (RuntimeError, NameError, TypeError, submitit.core.utils.FailedJobError) as error:
      raise UserError(f'Slurm took no job: {str(error).splitlines()[0]}', 1) from error
    _watch(dict(zip(jobs, waiting, strict=True)), folder, ended, self.poll_seconds, self.logs)


def _watch(
  jobs: dict[Any, Trial], folder: Path, ended: Ended, poll_seconds: float, logs: Path
) -> None:
  """Until every job is done. A job that ended without a note of it was killed or refused."""
  lost = []
  while jobs:
    for job, trial in list(jobs.items()):
      done = job.done()
      if outcome := read_outcome(folder / trial.folder):
        ended(trial, outcome)
      elif not done:
        continue
      else:
        lost.append(trial.folder)
      del jobs[job]
    if jobs:
      time.sleep(poll_seconds)
  if lost:
    raise UserError(
      f'{len(lost)} jobs ended without an outcome ({", ".join(lost[:3])} ...): {logs} says why; '
      'run the same command again to go on',
      1,
    )


@dataclasses.dataclass(frozen=True)
class Ray(Runner):
  """Tasks of a Ray cluster, one a trial.

  Attributes:
    load: reads gin files.
    settings: of `ray.remote`: {'num_cpus': 1, 'num_gpus': 0.5}; 'address' is the cluster's.
  """

  load: _Load
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def run(self, trials, folder, ended):
    ray = _import('ray', 'ray')
    waiting = pending(trials, folder)
    tell_ended(trials, waiting, folder, ended)
    settings = {'num_cpus': 1} | dict(self.settings)
    if not ray.is_initialized():
      ray.init(address=settings.pop('address', None), log_to_driver=False)
    settings.pop('address', None)
    remote = ray.remote(**settings)(_run)
    jobs = {remote.remote(one, folder.resolve(), self.load): one for one in waiting}
    while jobs:
      done, _ = ray.wait(list(jobs), num_returns=1)
      trial = jobs.pop(done[0])
      outcome = ray.get(done[0])
      if outcome is not None:
        ended(trial, outcome)


def _import(name: str, extra: str) -> Any:
  import importlib

  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise UserError(f"this runner needs {name}: pip install 't2x[{extra}]'") from error
