"""A trial in its run folder: what is trained, and what an earlier process left there."""

from t2x.sweeps.records import read_outcome, read_plan
from t2x.sweeps.trial import run_trial


def test_a_config_that_is_not_the_trials_is_not_trained(sweep, tmp_path):
  sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}}")
  (folder,) = (tmp_path / 'out' / 'trials').iterdir()
  (trial,) = read_plan(tmp_path / 'out' / 'study').trials
  before = read_outcome(folder)
  path = folder / 'config.gin'
  planned = path.read_text()
  path.write_text(planned.replace('hidden_dim = 32', 'hidden_dim = 24'))
  (folder / 'trial.json').unlink()
  outcome = run_trial(trial, folder.parent)
  assert outcome.status == 'failed'
  assert f'{path} does not resolve to the config of trial {trial.folder}: ' in outcome.reason
  # The sweep writes the config of its plan.
  (folder / 'trial.json').unlink()
  assert sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}}")[0] == 0
  assert read_outcome(folder).metrics == before.metrics


def test_what_a_killed_process_was_writing_is_removed(sweep, tmp_path):
  sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}}")
  (folder,) = (tmp_path / 'out' / 'trials').iterdir()
  (trial,) = read_plan(tmp_path / 'out' / 'study').trials
  (folder / 'trial.json').unlink()
  half = [folder / 'trial.json.0a1b2c3d.tmp', folder / 'metrics.jsonl.0a1b2c3d.tmp']
  for path in half:
    path.write_text('{')
  assert run_trial(trial, folder.parent).status == 'finished'
  assert not any(path.exists() for path in half)


def test_a_trial_whose_outcome_cannot_be_read_runs_again(sweep, tmp_path, outcomes):
  sweep()
  before = {name: one.metrics for name, one in outcomes().items()}
  path = next(tmp_path.glob('out/trials/*/trial.json'))
  path.write_text('{')
  code, told = sweep('--dry-run')
  assert code == 0 and f'{path} is damaged: ' in told.err and 'the trial runs again' in told.err
  assert '1 of 4 trials to run' in told.out and path.read_text() == '{'
  code, told = sweep()
  assert code == 0 and f'{path} is damaged: ' in told.err
  assert {name: one.metrics for name, one in outcomes().items()} == before
  assert path.with_name('trial.json.damaged').read_text() == '{'
