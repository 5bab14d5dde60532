"""A trial in its run folder: what is trained, and what an earlier process left there."""

import pytest

from t2x.sweeps.leases import Leases
from t2x.sweeps.records import Trial, read_outcome, read_plan
from t2x.sweeps.runners import InProcess
from t2x.sweeps.trial import Programs
from t2x.sweeps.vmapped_trials import run_trials


def run(trials, folder):
  return run_trials(trials, folder, Programs(), Leases())


def test_a_config_that_is_not_the_trials_is_not_trained(sweep, tmp_path):
  sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}}")
  (folder,) = (tmp_path / 'out' / 'trials').iterdir()
  (trial,) = read_plan(tmp_path / 'out' / 'study').trials
  before = read_outcome(folder)
  path = folder / 'config.gin'
  planned = path.read_text()
  path.write_text(planned.replace('hidden_dim = 32', 'hidden_dim = 24'))
  (folder / 'trial.json').unlink()
  outcome = run([trial], folder.parent)[trial.folder]
  assert outcome.status == 'failed'
  assert f'{path} does not resolve to the config of trial {trial.folder}: ' in outcome.reason
  # The sweep writes the config of its plan.
  (folder / 'trial.json').unlink()
  assert sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}}")[0] == 0
  assert read_outcome(folder).metrics == before.metrics


def test_partial_files_of_a_killed_process_are_removed(sweep, tmp_path):
  sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}}")
  (folder,) = (tmp_path / 'out' / 'trials').iterdir()
  (trial,) = read_plan(tmp_path / 'out' / 'study').trials
  (folder / 'trial.json').unlink()
  half = [folder / 'trial.json.0a1b2c3d.tmp', folder / 'metrics.jsonl.0a1b2c3d.tmp']
  for path in half:
    path.write_text('{')
  assert run([trial], folder.parent)[trial.folder].status == 'finished'
  assert not any(path.exists() for path in half)


@pytest.mark.nightly
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


def die(folder):
  """A process that holds the lease is killed."""
  folder.mkdir(exist_ok=True)
  with Leases().hold(folder):
    attempt = (folder / '.attempt.json').read_bytes()
  (folder / '.attempt.json').write_bytes(attempt)


@pytest.mark.parametrize('together', [1, 2])
def test_a_trial_whose_process_was_killed_twice_has_failed(tmp_path, together, monkeypatch):
  monkeypatch.setattr('t2x.sweeps.vmapped_trials._train', lambda trials, *_: dict.fromkeys('c'))
  trials = [
    Trial(variant=name, point={}, seed=0, identity=name, folder=name, program='p') for name in 'abc'
  ]
  for name in 'ab':
    die(tmp_path / name)
  die(tmp_path / 'a')
  (tmp_path / 'c').mkdir()
  # A trial that was killed once may end the others: it is not trained with them.
  outcomes = run(trials if together > 1 else trials[:1], tmp_path)
  assert list(outcomes) == ['a', 'c'][:together]
  assert outcomes['a'] == read_outcome(tmp_path / 'a') and outcomes['a'].status == 'failed'
  assert outcomes['a'].reason.startswith('its process was killed in 2 attempts: an unknown signal')
  # The next attempt, with --retry, is not the third.
  (tmp_path / 'a' / 'trial.json').unlink()
  with Leases().hold(tmp_path / 'a') as deaths:
    assert deaths == ()


def test_a_trial_of_an_older_version_is_read_and_resumed(sweep, tmp_path):
  sweep('--gin.Sweep.seeds=1', variants="{'gelu': {}}")
  (folder,) = (tmp_path / 'out' / 'trials').iterdir()
  (trial,) = read_plan(tmp_path / 'out' / 'study').trials
  before = read_outcome(folder)
  for name in ('.trial', '.lease-1.json'):
    (folder / name).touch()
  ended = []
  InProcess().run([trial], folder.parent, lambda one, outcome: ended.append(outcome))
  assert ended == [before]
  (folder / 'trial.json').unlink()
  InProcess().run([trial], folder.parent, lambda one, outcome: ended.append(outcome))
  assert ended[1].metrics == before.metrics and not [*folder.glob('.lease-*')]
