"""Sweeps run: each trial once, whoever runs it and however often it was cut short."""

import collections
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from t2x.base.errors import UserError
from t2x.base.signals import handle_signals
from t2x.cli import main
from t2x.experiments import data_of, read_config
from t2x.sweeps.leases import Leases
from t2x.sweeps.provenance import origin
from t2x.sweeps.records import Outcome, Trial, read_outcome, read_plan, write_outcome
from t2x.sweeps.report import write_report
from t2x.sweeps.runners import InProcess, distinct
from t2x.sweeps.trial import Programs
from t2x.sweeps.vmapped_trials import run_trials
from t2x.train import Cosine, Program, train


def ends(outcomes):
  """What must not depend on how the trials came to their ends."""
  return {name: (one.status, one.reason, one.metrics) for name, one in outcomes.items()}


def times(out):
  return {path: path.stat().st_mtime_ns for path in out.glob('trials/*/trial.json')}


def wait_for(out, count, process, timeout=120):
  """Until so many trials have ended."""
  end = time.monotonic() + timeout
  while len(times(out)) < count:
    assert process.poll() is None, process.stderr.read().decode()
    assert time.monotonic() < end
    time.sleep(0.02)


def test_a_trial_is_an_ordinary_run_bit_for_bit(sweep, metrics, tmp_path):
  code, _ = sweep()
  assert code == 0
  # The first trial of a program and the second one of another.
  for trial in read_plan(tmp_path / 'out' / 'study').trials[::3]:
    folder = tmp_path / 'out' / 'trials' / trial.folder
    config = read_config([folder / 'config.gin'])
    alone = tmp_path / 'alone' / trial.folder
    train(config.build(), alone, (folder / 'config.gin').read_text())
    assert metrics(folder) == metrics(alone)
    outcome = read_outcome(folder)
    assert outcome.status == 'finished'
    assert outcome.metrics == {
      name: value for name, value in metrics(alone)[-1].items() if name not in ('step', 'split')
    }
    assert outcome.memory_bytes > 4 * trial.parameters * 3
    assert outcome.seconds > 0 and outcome.tokens_per_second > 0
    data = {f'data {name}': text for name, text in data_of(config.build()).items()}
    assert outcome.made_by == origin() | data
    assert {
      'jax',
      'device',
      'commit',
      'data HeldOut(source=Digits(), validation=0.1)',
    } <= outcome.made_by.keys()
    assert 0 < outcome.step_seconds * trial.num_steps < outcome.seconds
    assert outcome.compile_seconds >= 0 and outcome.conditions.cpus >= 1
    assert outcome.conditions.ended - outcome.conditions.began >= outcome.seconds


def test_only_new_seeds_are_run_again(sweep, tmp_path):
  sweep(variants="{'gelu': {}}")
  before = times(tmp_path / 'out')
  code, told = sweep(variants="{'gelu': {}}")
  assert code == 0, told
  assert '0 of 2 trials to run' in told.out
  assert times(tmp_path / 'out') == before
  _, told = sweep('--gin.Sweep.seeds=3', variants="{'gelu': {}}")
  assert '1 of 3 trials to run' in told.out
  after = times(tmp_path / 'out')
  assert before.items() < after.items() and len(after) == 3


@pytest.mark.nightly
def test_a_runner_gets_only_the_remaining_trials(sweep, tmp_path, monkeypatch):
  sweep()
  trials = distinct(read_plan(tmp_path / 'out' / 'study').trials)
  (tmp_path / 'out' / 'trials' / trials[2].folder / 'trial.json').unlink()
  handed = []
  monkeypatch.setattr(InProcess, 'run', lambda self, trials, *_: handed.extend(trials))
  sweep()
  assert handed == [trials[2]]
  handed.clear()
  code, told = sweep('--gin.Sweep.metric=los', '--gin.Sweep.goal=min')
  assert code == 2 and "no metric 'los'" in told.err and not handed


def test_a_sweep_file_does_not_take_the_folder_of_another(sweep, tmp_path, capsys):
  sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}}")
  plan = tmp_path / 'out' / 'study' / 'sweep.json'
  before = plan.read_text()
  (tmp_path / 'other').mkdir()
  other = tmp_path / 'other' / 'study.gin'
  other.write_text("include '../study.gin'\nSweep.base = '../base.gin'\n")

  def run(file):
    code = main(['sweep', str(file), '--out', str(tmp_path / 'out'), '--dry-run'])
    return code, capsys.readouterr().err

  code, told = run(other)
  assert code == 2 and f'contains the sweep of {tmp_path}/study.gin: rename {other}' in told
  assert plan.read_text() == before
  trials = tmp_path / 'trials.gin'
  trials.write_text(other.read_text())
  code, told = run(trials)
  assert code == 2 and 'the folder of the trials: rename the file' in told
  # One that was moved here is the same; so is what an older version wrote.
  plan.write_text(before.replace('../study.gin', '../moved.gin'))
  assert run(other)[0] == 0
  plan.write_text(json.dumps({k: v for k, v in json.loads(before).items() if k != 'file'}))
  assert run(other)[0] == 0


def test_a_dry_run_leaves_no_files(sweep, tmp_path):
  code, told = sweep('--dry-run')
  assert code == 0 and 'relu' in told.out and 'estimated time' in told.out
  assert not (tmp_path / 'out').exists()


def end_at_once(self, trials, folder, on_end):
  """As `InProcess.run`, without training."""
  for trial in trials:
    metrics = {'loss': 2 + 0.01 * trial.seed, 'accuracy': 0.5}
    outcome = Outcome(status='finished', metrics=metrics, made_by={'t2x': 'test'})
    write_outcome(folder / trial.folder, outcome)


def test_an_earlier_report_with_other_settings_is_named_before_the_trials(sweep, monkeypatch):
  monkeypatch.setattr(InProcess, 'run', end_at_once)
  code, told = sweep('--gin.Sweep.seeds=3', '--gin.Trainer.num_steps=6')
  assert code == 0 and 'exploratory' not in told.err
  reason = 'configs of baseline and variants changed after the report of '
  for arguments in (('--dry-run',), (), ()):
    code, told = sweep('--gin.Sweep.seeds=4', *arguments)
    assert code == 0 and told.err.count(f't2x: verdicts will be exploratory: {reason}') == 1
    assert 'if that report was only a test, use another --out' in told.err
  code, told = sweep('--gin.Sweep.seeds=4', out='another')
  assert code == 0 and 'exploratory' not in told.err


@pytest.mark.parametrize('installed', [True, False])
def test_figures_are_suggested_only_with_matplotlib(sweep, tmp_path, monkeypatch, installed):
  monkeypatch.setattr(InProcess, 'run', end_at_once)
  if not installed:
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
  _, told = sweep()
  command = f'next    t2x report {tmp_path}/out/study'
  assert told.out.splitlines()[-1] == command + ' --figures' * installed


@pytest.mark.nightly
def test_diverged_trials_are_recorded_and_the_first_error_stops_the_others(
  sweep, tmp_path, outcomes
):
  variants = """{
    'gelu': {},
    'wild': {'AdamW.weight_decay': 1e30, 'Trainer.clip_norm': None},
    'broken': {'ImageClassification.train_split': 'nowhere'},
  }"""
  code, told = sweep(variants=variants)
  assert code == 2
  found = {folder: outcome for folder, outcome in outcomes().items() if outcome}
  reasons = {
    trial.variant: found[trial.folder].reason
    for trial in reversed(read_plan(tmp_path / 'out/study').trials)
    if trial.folder in found
  }
  assert 'not finite' in reasons['wild'] and len(reasons['wild']) < 200
  assert "no split 'nowhere'" in reasons['broken']
  assert reasons['gelu'] == ''
  assert "no split 'nowhere'" in told.err
  assert collections.Counter(one.status for one in found.values()) == {
    'finished': 2,
    'diverged': 2,
    'failed': 1,
  }
  before = times(tmp_path / 'out')
  sweep('--retry', variants=variants)
  again = {path for path, when in times(tmp_path / 'out').items() if before[path] != when}
  assert {read_outcome(path.parent).status for path in again} == {'failed'} and len(again) == 1


def test_a_metric_that_there_is_not_ends_the_sweep_at_its_first_trial(sweep, tmp_path):
  metric = ('--gin.Sweep.metric=acuracy', '--gin.Sweep.goal=max')
  for _ in range(2):
    code, told = sweep(*metric)
    assert code == 2
    assert "no metric 'acuracy' in a finished trial; did you mean 'accuracy'?" in told.err
    assert 'one of accuracy, eval_examples, loss' in told.err
    assert len(times(tmp_path / 'out')) == 1


@pytest.mark.nightly
def test_a_metric_that_some_trials_lack_is_reported_at_the_end(sweep, tmp_path):
  sweep()
  trials = distinct(read_plan(tmp_path / 'out' / 'study').trials)
  path = tmp_path / 'out' / 'trials' / trials[-1].folder
  write_outcome(path, Outcome(status='finished', metrics={'other': 1.0}))
  code, told = sweep()
  assert code == 1 and "4 finished, 1 without 'loss'\n" in told.out


def test_an_unwritable_folder_is_an_error(sweep, tmp_path):
  (tmp_path / 'out').write_text('a file')
  code, told = sweep()
  assert code == 2 and f'--out {tmp_path / "out"} cannot be written: ' in told.err


def test_variants_that_are_not_run_are_reported_at_the_end(sweep):
  variants = "{'gelu': {}, 'long': {'Trainer.num_steps': 24}}"
  code, told = sweep('--gin.Sweep.seeds=1', variants=variants)
  assert code == 1
  assert '1 finished; not run, because their budgets do not match: long\n' in told.out


@pytest.mark.nightly
def test_seeds_share_what_is_compiled(sweep, monkeypatch):
  made = []
  monkeypatch.setattr(
    't2x.sweeps.trial.Program', lambda *given: made.append(given) or Program(*given)
  )
  sweep()
  assert len(made) == 2


def test_a_part_that_uses_a_hyperparameter_as_a_number_fails_with_its_name(
  sweep, monkeypatch, outcomes
):
  monkeypatch.setattr(Cosine, 'after_warmup', lambda self, step, num_steps: self.peak + 0 * step)
  code, _ = sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}, 'rate': {'Cosine.peak': 3e-3}}")
  assert code == 2
  # The sweep stops at the first error of a config.
  (outcome,) = filter(None, outcomes().values())
  assert outcome.status == 'failed'
  assert 'read it with t2x.base.hyperparameters.scalar' in outcome.reason
  assert outcome.reason.startswith('Cosine.peak varies between trials')


@pytest.mark.parametrize('together', [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_trials_that_share_a_program_end_as_trainings_with_constants(
  together, sweep, metrics, tmp_path, assert_close, outcomes
):
  sweep(
    *('--gin.Sweep.seeds=1', '--together', str(together)),
    variants="{'gelu': {}}",
    extra="  grid = {'Cosine.peak': [1e-2, 3e-3], 'PreNorm.dropout_rate': [0.1, 0.3]}\n",
  )
  trials = read_plan(tmp_path / 'out' / 'study').trials
  assert len(trials) == 4 and len({trial.program for trial in trials}) == 1
  assert {one.together for one in outcomes().values()} == {together}
  folders = [tmp_path / 'out' / 'trials' / trial.folder for trial in trials]
  # One in each place of a pair; they differ in both hyperparameters.
  for folder in folders[::3]:
    config, alone = read_config([folder / 'config.gin']), tmp_path / 'alone' / folder.name
    train(config.build(), alone, '')
    assert_close(metrics(folder), metrics(alone), 1e-6)
  rates = [metrics(folder)[0]['learning_rate'] for folder in folders]
  assert rates == pytest.approx([trial.point['Cosine.peak'] for trial in trials], rel=0.2)


def test_a_trial_that_is_held_is_passed_over(sweep, tmp_path):
  sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}}")
  (folder,) = (tmp_path / 'out' / 'trials').iterdir()
  (folder / 'trial.json').unlink()
  (trial,) = read_plan(tmp_path / 'out' / 'study').trials
  with Leases().hold(folder):
    assert run_trials([trial], folder.parent, Programs(), Leases()) == {}
  outcomes = run_trials([trial], folder.parent, Programs(), Leases())
  assert outcomes[trial.folder].status == 'finished'


def test_a_stop_request_in_the_last_step_of_a_trial_starts_no_other_trial(tmp_path, monkeypatch):
  begun = []

  def last_step(trials, *_):
    begun.extend(trial.folder for trial in trials)
    with handle_signals(lambda *_: None):
      signal.raise_signal(signal.SIGTERM)
    return {trial.folder: Outcome(status='finished') for trial in trials}

  monkeypatch.setattr('t2x.sweeps.runners.run_trials', last_step)
  trials = [
    Trial(variant=name, point={}, seed=0, identity=name, folder=name, program=name)
    for name in ('one', 'two')
  ]
  told = []
  with pytest.raises(UserError, match='interrupted'):
    InProcess().run(trials, tmp_path, lambda trial, outcome: told.append(trial.folder))
  assert begun == told == ['one']


def test_workers_begin_in_different_places_and_between_them_run_all():
  trials = [
    Trial(
      variant='v',
      point={},
      seed=i % 2,
      identity='',
      folder=f'{i // 2}-{i % 2}',
      program=f'{i // 2}',
    )
    for i in range(12)
  ]
  orders = [[t.folder for t in InProcess((i, 3))._order(trials)] for i in range(3)]
  assert len({order[0] for order in orders}) == 3
  for order in orders:
    assert sorted(order) == sorted(t.folder for t in trials)


@pytest.mark.slow
@pytest.mark.nightly
def test_hyperparameters_share_a_program_and_equal_separate_runs(
  command, sweep_file, metrics, tmp_path, assert_close
):
  variants = """{
    'gelu': {'PreNorm.dropout_rate': 0.1, 'AdamW.weight_decay': 0.1},
    'rate': {'PreNorm.dropout_rate': 0.1, 'AdamW.weight_decay': 0.1, 'Cosine.peak': 3e-3},
    'decay': {'PreNorm.dropout_rate': 0.1, 'AdamW.weight_decay': 0.4},
    'dropout': {'PreNorm.dropout_rate': 0.3, 'AdamW.weight_decay': 0.1},
    'smooth': {'PreNorm.dropout_rate': 0.1, 'AdamW.weight_decay': 0.1, 'ImageClassification.label_smoothing': 0.1},
    'smoother': {'PreNorm.dropout_rate': 0.1, 'AdamW.weight_decay': 0.1, 'ImageClassification.label_smoothing': 0.2},
  }"""
  sweep_file(variants)
  assert command('shared', '--gin.Sweep.seeds=1').wait() == 0
  plan = read_plan(tmp_path / 'shared' / 'study')
  programs = {trial.variant: trial.program for trial in plan.trials}
  # Nothing is not a little: without smoothing the program is another.
  assert len(set(programs.values())) == 2
  assert programs['gelu'] == programs['dropout'] != programs['smooth'] == programs['smoother']
  losses = set()
  for trial in plan.trials:
    shared = tmp_path / 'shared' / 'trials' / trial.folder
    alone = tmp_path / 'alone' / trial.folder
    line = ['train', str(shared / 'config.gin'), '--out', str(alone)]
    subprocess.run([sys.executable, '-m', 't2x', *line], check=True, capture_output=True)
    assert_close(metrics(shared), metrics(alone), 1e-5)
    losses.add(metrics(shared)[-1]['loss'])
  assert len(losses) == 6
  # The last in line, run without the others, is the same bit for bit.
  (tmp_path / 'again').mkdir()
  shutil.copytree(tmp_path / 'shared', tmp_path / 'again', dirs_exist_ok=True)
  last = tmp_path / 'again' / 'trials' / plan.trials[-1].folder
  shutil.rmtree(last)
  assert command('again', '--gin.Sweep.seeds=1').wait() == 0
  assert metrics(last) == metrics(tmp_path / 'shared' / 'trials' / plan.trials[-1].folder)


@pytest.mark.slow
@pytest.mark.nightly
def test_killed_three_times_it_ends_as_if_it_had_not_been(command, sweep, tmp_path, outcomes):
  sweep(out='whole')
  for count in (1, 2, 3):
    process = command()
    wait_for(tmp_path / 'out', count, process)
    process.kill()
    process.wait()
  process = command()
  assert process.wait() == 0
  assert ends(outcomes()) == ends(outcomes('whole'))
  results = [write_report(tmp_path / out / 'study')[0].read_bytes() for out in ('out', 'whole')]
  assert results[0] == results[1]
  assert results[0].count(b'finished') >= 4


@pytest.mark.nightly
def test_two_side_by_side_run_no_trial_twice(command, sweep, tmp_path, outcomes):
  sweep(out='whole')
  both = [command(), command()]
  assert [process.wait() for process in both] == [0, 0]
  assert ends(outcomes()) == ends(outcomes('whole'))
  starts = [path.read_text().count('devices ') for path in tmp_path.glob('out/trials/*/log.txt')]
  assert starts == [1] * 4


@pytest.mark.nightly
@pytest.mark.slow
def test_a_pool_runs_all_trials_and_stops_on_request(command, sweep, tmp_path, outcomes):
  line = ('--gin.Sweep.seeds=5',)
  sweep(*line, out='whole')
  line += ('--processes', '2')
  process = command('out', *line)
  wait_for(tmp_path / 'out', 1, process)
  process.send_signal(signal.SIGTERM)
  assert process.wait() == 75
  assert command('out', *line).wait() == 0
  assert ends(outcomes()) == ends(outcomes('whole'))


@pytest.mark.nightly
def test_a_pool_leaves_no_worker_when_the_sweep_ends_early(command, tmp_path):
  line = ('--processes', '2', '--gin.Sweep.seeds=20')
  process = command('out', *line, '--gin.Sweep.metric=los', '--gin.Sweep.goal=min')
  _, told = process.communicate(timeout=300)
  assert process.returncode == 2 and b"no metric 'los'" in told
  ended = times(tmp_path / 'out')
  assert 0 < len(ended) < 40
  time.sleep(5)
  assert times(tmp_path / 'out') == ended


@pytest.mark.slow
def test_the_error_of_a_pool_whose_workers_die_names_the_logs(sweep, tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'executable', '/bin/false')
  code, told = sweep('--processes', '2')
  assert code == 1 and 'the workers ended early: see ' in told.err
