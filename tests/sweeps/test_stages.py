"""A tuned sweep from the command line: its stages, interruptions, job arrays and report."""

import json

import numpy as np
import pytest

from t2x.base.errors import Interrupted
from t2x.cli import main
from t2x.sweeps.records import Outcome, write_outcome
from t2x.sweeps.runners import InProcess

# The variant differs from the baseline only in the learning rate, with which it does not learn.
SLOW = "{'gelu': {}, 'slow': {'Cosine.peak': 1e-5}}"
TUNE = """  tune = @Tune()
  seeds = 3
  margin = 0.1

Tune:
  parameter = 'Cosine.peak'
  values = [1e-5, 3e-2]

Cosine.peak = 3e-2
Trainer:
  num_steps = 100
  batch_size = 64
"""


@pytest.fixture
def run(sweep_file, tmp_path, capsys):
  """`run(*arguments)` runs `t2x sweep` on a tuned sweep; returns its exit code and output."""
  file = sweep_file(SLOW, TUNE)
  file.write_text(file.read_text().replace('  seeds = 2\n', ''))

  def run(*arguments):
    line = ['sweep', str(file), '--out', str(tmp_path / 'out'), '--processes', '1', *arguments]
    code = main([item for item in line if item is not None])
    return code, capsys.readouterr()

  return run


@pytest.fixture
def fake():
  """Replaces `InProcess.run`: trials end at once, with a loss that is least at a learning rate of 3e-2."""

  def train(self, trials, folder, on_end):
    for trial in trials:
      noise = 1e-3 * np.random.default_rng(trial.seed).normal()
      loss = 3.0 + 10 * (1 + noise) * abs(trial.numbers['Cosine.peak'] - 3e-2)
      outcome = Outcome(status='finished', metrics={'loss': loss}, made_by={'t2x': 'test'})
      write_outcome(folder / trial.folder, outcome)
      on_end(trial, outcome)

  return train


@pytest.fixture
def interrupt(monkeypatch, fake):
  """`interrupt(stage)`: the process ends when it begins a trial of the stage, counted from 0."""
  calls = []

  def patch(stage):
    def stop(self, trials, folder, on_end):
      calls.append(trials)
      if len(calls) == stage + 1:
        raise Interrupted
      fake(self, trials, folder, on_end)

    calls.clear()
    monkeypatch.setattr(InProcess, 'run', stop)

  return patch


def report(folder, capsys):
  assert main(['report', str(folder), '--json']) == 0
  return json.loads(capsys.readouterr().out)


def check(out, capsys):
  """The variant is as good as the baseline when both are tuned, and worse before."""
  data = report(out / 'study', capsys)
  gelu, slow = data['tuning']['rows']
  assert (slow['own'], slow['chosen'], slow['edge']) == (1e-5, 3e-2, '')
  # The grid was extended by a value that is 3,000 times as large, as the other two differ.
  assert [item['value'] for item in slow['curve']] == [1e-5, 3e-2, 90]
  assert (gelu['own'], gelu['chosen']) == (3e-2, 3e-2)
  assert (slow['before']['verdict'], slow['after']['verdict']) == ('hurts', 'same')
  assert [row['verdict'] for row in data['rows']] == ['baseline', 'same']
  assert slow['curve'][0]['mean'] > slow['curve'][1]['mean'] + 0.2
  text = (out / 'study' / 'report.md').read_text()
  assert '| slow | Cosine.peak | 1e-05 | 0.03 |' in text and '| hurts |' in text
  # Three seeds at each value: the variant shares the trials of the baseline when it is tuned.
  assert len([*out.glob('trials/*/trial.json')]) == 9 + 3 + 3


@pytest.mark.nightly
def test_tuning_changes_a_verdict(run, tmp_path, capsys):
  assert run()[0] == 0
  check(tmp_path / 'out', capsys)


def test_stages_are_resumed_after_interruptions(run, interrupt, tmp_path, capsys):
  out = tmp_path / 'out'
  interrupt(2)
  code, printed = run()
  # After the tuning and its extension, before the first trial of the result.
  assert code == 75
  assert printed.out.count('differs in') == 1 == printed.out.count('stage       folder')
  assert (
    'study-tune: 6 finished\n\na best value is at an edge: all variants also try Cosine.peak = 90\n'
    'study-tune: 3 of 9 trials to run'
  ) in printed.out
  assert 'study-tune: 9 finished\n\nvariant  tuned parameter' in printed.out
  assert max(map(len, printed.out.splitlines())) <= 80
  # Six trials, then three of the extension; three of the comparison and six at the own values are counted twice.
  assert ' 6/18  gelu, peak=1e-05, seed 1000002: loss ' in printed.err
  assert ' 9/21  gelu, peak=90.0, seed 1000002: loss ' in printed.err
  assert 'run the same command to resume' in printed.err
  before = {path: path.stat().st_mtime_ns for path in out.glob('trials/*/trial.json')}
  assert len(before) == 9
  interrupt(1)
  assert run()[0] == 75  # Before the first trial at the own values.
  partial = report(out / 'study', capsys)
  first, second = (row['before'] for row in partial['tuning']['rows'])
  assert first['n'] == 3 and second is None
  assert partial['tuning']['untuned'] == '3 of 6 trials ended: 3 finished, 3 waiting'
  interrupt(9)
  code, printed = run()
  assert code == 0 and 'study-untuned: 6 finished\n' in printed.out
  text = ' '.join(printed.out.split())
  assert 'slow is the same (within 0.1) against the baseline gelu by loss' in text
  assert printed.out.splitlines()[-2:] == [
    f'report  {out}/study/report.html',
    f'next    t2x report {out}/study --figures',
  ]
  assert (out / 'study' / 'report.html').exists() and (out / 'study' / 'looks.json').exists()
  after = {path: path.stat().st_mtime_ns for path in out.glob('trials/*/trial.json')}
  assert before.items() < after.items()
  check(out, capsys)
  code = main(['report', str(out / 'study-tune')])
  assert code == 2 and 'reports the tuned sweep' in capsys.readouterr().err


def test_the_stage_at_the_own_values_can_be_left_out(run, fake, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(InProcess, 'run', fake)
  code, printed = run('--gin.Tune.untuned=False')
  assert code == 0 and 'study: 3 finished' in printed.out and 'untuned' not in printed.out
  assert '12/12  gelu' in printed.err
  assert not (tmp_path / 'out' / 'study-untuned').exists()
  data = report(tmp_path / 'out' / 'study', capsys)
  assert data['rows'][1]['verdict'] == 'same' and data['tuning']['untuned'] == ''
  text = (tmp_path / 'out' / 'study' / 'report.md').read_text()
  assert 'at its own value with the same seeds, which have not been run' in text
  # The trials of the comparison are those of the sweep with all stages.
  code, printed = run()
  assert code == 0 and '9 finished' in printed.out and '3 of 6 trials to run' in printed.out


def test_a_quiet_sweep_prints_how_trials_ended_and_the_verdicts(run, fake, monkeypatch):
  monkeypatch.setattr(InProcess, 'run', fake)
  code, printed = run('--quiet')
  assert code == 0 and printed.err == ''
  assert printed.out.startswith(
    'study-tune: 6 finished\nstudy-tune: 9 finished\nstudy: 3 finished\n'
  )
  assert 'differs in' not in printed.out and 'slow     same' in printed.out


def test_groups_of_each_stage_run_as_job_arrays(run, fake, tmp_path, monkeypatch):
  monkeypatch.setattr(InProcess, 'run', fake)
  code, printed = run('--groups')
  lines = printed.out.splitlines()
  assert code == 0 and lines[-1] == 'groups to run: 0'
  assert f'groups of study-tune: t2x sweep {tmp_path}/study.gin --stage tune --group I' in lines
  assert run('--group', '0')[0] == 2, 'the values are not known yet'
  code, printed = run('--group', '0', '--stage', 'tune')
  assert code == 0 and 'study-tune: 6 finished' in printed.out
  # Both values have ended, and the larger one is the best.
  assert run('--groups')[1].out.splitlines()[-1] == 'groups to run: 0'
  assert run('--group', '0', '--stage', 'tune')[0] == 0
  code, printed = run('--groups')
  assert code == 0 and f't2x sweep {tmp_path}/study.gin --group I' in printed.out
  assert 'slow     Cosine.peak' in printed.out
  code, printed = run('--dry-run')
  assert code == 0 and '3 of 3 trials to run, 1 programs to compile' in printed.out
  assert 'study-tune: 9 finished' in printed.out


def test_verdicts_are_withheld_if_the_budget_ends_at_an_edge(
  run, fake, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(InProcess, 'run', fake)
  code, printed = run('--gin.Tune.max_trials=6')
  assert code == 0
  assert (
    'gelu is not tuned: the best Cosine.peak is the largest tried (0.03) '
    'slow is not tuned: the best Cosine.peak is the largest tried (0.03) '
    'verdicts on these, and on all variants if it is the baseline, are withheld: add values beyond, or increase '
    'Tune.max_trials variant verdict'
  ) in ' '.join(printed.out.split())
  data = report(tmp_path / 'out' / 'study', capsys)
  row = data['rows'][1]
  reason = 'not tuned: the best Cosine.peak is the largest tried'
  assert (row['verdict'], row['note']) == (
    'withheld',
    f'{reason}; same config as the baseline; no difference at any seed',
  )
  assert data['result'].startswith(f'slow has no verdict ({reason}) against the baseline gelu')
  assert '| withheld |' in (tmp_path / 'out' / 'study' / 'report.md').read_text()
  assert (
    main(['sweep', str(tmp_path / 'study.gin'), '--out', str(tmp_path / 'out'), '--confirm']) == 2
  )
  assert 'no variant helps or hurts' in capsys.readouterr().err


def ends(status, **more):
  """Trials of the variant 'slow' end with this status, all others too if it is 'failed'."""

  def train(self, trials, folder, on_end):
    for trial in trials:
      outcome = Outcome(status='finished', metrics={'loss': 1.0 + 1e-3 * trial.seed})
      if trial.variant == 'slow' or status == 'failed':
        outcome = Outcome(status=status, reason='the reason', **more)
      write_outcome(folder / trial.folder, outcome)
      on_end(trial, outcome)

  return train


def test_an_error_in_a_config_stops_the_sweep_at_its_first_trial(run, tmp_path, monkeypatch):
  monkeypatch.setattr(InProcess, 'run', ends('failed', invalid=True))
  for _ in range(2):
    code, printed = run()
    assert code == 2 and 'seed 1000000: the reason\nthe sweep stops at this trial' in printed.err
    assert 'run the same command with --retry' in printed.err
    assert len([*(tmp_path / 'out').glob('trials/*/trial.json')]) == 1


def test_nothing_is_compared_without_a_tuning_trial_of_the_baseline(run, tmp_path, monkeypatch):
  monkeypatch.setattr(InProcess, 'run', ends('failed'))
  code, printed = run()
  assert code == 1 and "no tuning trial of the baseline 'gelu' finished" in printed.err
  assert not (tmp_path / 'out' / 'study' / 'sweep.json').exists()


def test_a_verdict_is_withheld_without_a_tuning_trial_of_the_variant(
  run, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(InProcess, 'run', ends('diverged'))
  lost = "--gin.Sweep.variants={'gelu': {}, 'slow': {'Cosine.peak': 1e-5, 'MLP.activation': @relu}}"
  code, printed = run(lost, '--gin.Tune.values=[1e-5, 3e-2, 1.0]')
  assert code == 0, printed.err
  assert code == 0 and 'slow is not tuned: no tuning trial finished' in printed.out
  row = report(tmp_path / 'out' / 'study', capsys)['rows'][1]
  assert row['verdict'] == 'withheld' and 'not tuned: no tuning trial finished' in row['note']


def test_bindings_after_a_report_make_the_next_one_exploratory(
  run, fake, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(InProcess, 'run', fake)
  folder, file = tmp_path / 'out' / 'study', tmp_path / 'study.gin'
  assert run()[0] == 0 and report(folder, capsys)['look'] == ''
  text = file.read_text()
  head, _, rest = text.partition('  baseline = ')
  file.write_text(f'# A comment.\n{head}  metric = "loss"\n  baseline = {rest}')
  assert run()[0] == 0 and report(folder, capsys)['look'] == ''
  # Two comparisons in two reports.
  code, printed = run('--gin.Trainer.num_steps=50', '--quiet')
  reason = 'configs of baseline and variants changed after the report of '
  assert code == 0 and printed.err.count(f't2x: verdicts will be exploratory: {reason}') == 1
  data = report(folder, capsys)
  assert data['look'].startswith(f'Exploratory: {reason}')
  assert 'corrected for all comparisons of all reports (level 0.025)' in data['look']
  assert data['confidence'] == '97.5 %'


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('--stage', 'tune'), '--stage tune has no effect without --group'),
    (('--stage', 'untuned', '--confirm', '--group', '0'), '--stage untuned has no effect with'),
    (
      ('--stage', 'tune', '--confirm', '--group', '0'),
      'study-confirm-tune has no sweep.json: run `t2x sweep',
    ),
    (('--seeds', '4'), '--seeds has no effect without --confirm: use --gin.Sweep.seeds=N'),
    (('--seeds', '4', '--confirm', '--group', '0'), '--seeds has no effect with --group'),
    (('--group', '0', '--stage', 'untuned'), 'study-untuned has no sweep.json'),
    (('--confirm',), 'is not a sweep folder'),
  ],
)
def test_options_without_effect_are_refused(run, arguments, message):
  code, printed = run(*arguments)
  assert code == 2 and message in printed.err
