"""Trials as jobs of an engine: the shared folder tells what became of them."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from t2x.errors import UserError
from t2x.sweeps.engines import Engine, _run
from t2x.sweeps.records import Outcome, Trial, read_outcome, write_outcome
from t2x.sweeps.trial import locked_trial


def trial(name):
  return Trial(variant=name, point={}, seed=0, identity=name, folder=name)


@dataclasses.dataclass(frozen=True)
class Jobs(Engine):
  """Jobs that do `work` when they are first asked whether they are over."""

  work: Callable
  poll_seconds: float = 0.01
  started: list = dataclasses.field(default_factory=list)

  def start(self, trials, folder):
    self.started.append([one.folder for one in trials])
    return [lambda one=one: self.work(folder / one.folder) for one in trials]


@pytest.fixture
def folder(tmp_path):
  for name in 'abc':
    (tmp_path / name).mkdir()
  return tmp_path


def finish(run):
  write_outcome(run, Outcome(status='finished'))
  return True


def test_each_trial_is_a_job(folder):
  told = []
  jobs = Jobs(finish)
  jobs.run([trial(name) for name in 'abc'], folder, lambda one, outcome: told.append(one.folder))
  assert jobs.started == [['a', 'b', 'c']]
  assert sorted(told) == ['a', 'b', 'c']


def test_a_job_that_is_lost_leaves_the_others_and_is_named(folder):
  told = []
  jobs = Jobs(lambda run: run.name == 'a' or finish(run))
  with pytest.raises(UserError, match=r'1 jobs ended without an outcome \(a\)'):
    jobs.run([trial(name) for name in 'abc'], folder, lambda one, outcome: told.append(one.folder))
  assert sorted(told) == ['b', 'c']


def test_a_trial_that_another_machine_has_is_waited_for_and_run_when_it_is_free(folder):
  held_elsewhere = locked_trial(folder / 'a')
  held_elsewhere.__enter__()
  told = []

  def ended(one, outcome):
    told.append(one.folder)
    if one.folder == 'b':
      held_elsewhere.__exit__(None, None, None)

  jobs = Jobs(finish)
  jobs.run([trial('a'), trial('b')], folder, ended)
  assert jobs.started == [['b'], ['a']]
  assert told == ['b', 'a']


def test_a_job_runs_in_the_working_directory_of_the_sweep(folder, monkeypatch):
  monkeypatch.chdir('/')
  where = []

  def run_trial(trial, *_):
    where.append(Path.cwd())
    return Outcome(status='finished')

  monkeypatch.setattr('t2x.sweeps.engines.run_trial', run_trial)
  assert _run(trial('a'), folder, folder).status == 'finished'
  # On another machine it may not be there.
  assert _run(trial('a'), folder, folder / 'missing').status == 'finished'
  assert where == [folder, folder]


def test_an_engine_that_is_not_installed_is_said(sweep, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  code, told = sweep('--runner', 'ray')
  assert code == 2 and "pip install 't2x[ray]'" in told.err


def test_a_machine_without_slurm_is_said(sweep, monkeypatch):
  monkeypatch.setenv('PATH', '')
  code, told = sweep('--runner', 'slurm')
  assert code == 2 and 'sbatch is not installed on this machine' in told.err


@pytest.mark.slow
@pytest.mark.nightly
def test_slurm_through_submitit_without_a_cluster(command, sweep, tmp_path):
  sweep('--gin.Sweep.seeds=1', out='whole')
  # Its local executor: a process a job, as on a node.
  engine = ('--runner', 'slurm', '--setting', 'cluster=local', '--setting', 'timeout_min=5')
  assert command('out', '--gin.Sweep.seeds=1', *engine).wait() == 0
  ends = [
    {
      run.parent.name: read_outcome(run.parent).metrics
      for run in (tmp_path / out).rglob('trial.json')
    }
    for out in ('out', 'whole')
  ]
  assert ends[0] == ends[1] and len(ends[0]) == 2
