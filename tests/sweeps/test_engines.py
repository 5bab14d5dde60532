"""Programs as jobs of an engine: the shared folder tells what became of their trials."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from t2x.base.errors import UserError
from t2x.sweeps.engines import Engine, _run
from t2x.sweeps.records import Outcome, Trial, read_outcome, write_outcome


def trial(name, program=''):
  return Trial(variant=name, point={}, seed=0, identity=name, folder=name, program=program or name)


@dataclasses.dataclass(frozen=True)
class Jobs(Engine):
  """Jobs that do `work` on each of their trials when they are asked whether they are over."""

  work: Callable
  poll_seconds: float = 0.01
  started: list = dataclasses.field(default_factory=list)

  def start(self, groups, folder):
    self.started.append([[one.folder for one in group] for group in groups])
    return [
      lambda group=group: min(list(map(self.work, [folder / one.folder for one in group])))
      for group in groups
    ]


@pytest.fixture
def folder(tmp_path):
  for name in 'abc':
    (tmp_path / name).mkdir()
  return tmp_path


def finish(run):
  write_outcome(run, Outcome(status='finished'))
  return True


def test_trials_of_a_program_are_one_job(folder):
  told = []
  jobs = Jobs(finish)
  trials = [trial('a', 'one'), trial('b', 'two'), trial('c', 'one')]
  jobs.run(trials, folder, lambda one, outcome: told.append(one.folder))
  assert jobs.started == [[['a', 'c'], ['b']]]
  assert sorted(told) == ['a', 'b', 'c']


def test_a_job_that_is_lost_leaves_the_others_and_is_named(folder):
  told = []
  jobs = Jobs(lambda run: run.name == 'a' or finish(run))
  with pytest.raises(UserError, match=r'1 trials have no outcome although their jobs ended \(a\)'):
    jobs.run([trial(name) for name in 'abc'], folder, lambda one, outcome: told.append(one.folder))
  assert sorted(told) == ['b', 'c']


def test_a_job_runs_in_the_working_directory_of_the_sweep(folder, monkeypatch):
  monkeypatch.chdir('/')
  where = []

  def run_here(trials, *_):
    where.extend(Path.cwd() for _ in trials)
    return {trial.folder: Outcome(status='finished') for trial in trials}

  monkeypatch.setattr('t2x.sweeps.runners.run_trials', run_here)
  _run([trial('a'), trial('b', 'a')], folder, folder)
  # On another machine it may not be there.
  _run([trial('a')], folder, folder / 'missing')
  assert where == [folder] * 3


def test_a_missing_engine_is_an_error(sweep, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  code, told = sweep('--runner', 'ray')
  assert code == 2 and "pip install 't2x[launch]'" in told.err


@pytest.mark.parametrize('option', ['--processes', '--together'])
def test_options_of_the_local_runner_are_refused_with_an_engine(sweep, option):
  code, told = sweep('--runner', 'slurm', option, '2')
  assert code == 2 and 'has no effect with --runner slurm: remove it' in told.err


def test_a_machine_without_slurm_is_an_error(sweep, monkeypatch):
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
