"""Early stopping: at which evaluation a run ends, and that an interrupted run ends at the same one."""

import json
import shutil
import signal

import numpy as np
import pytest
from points import points

from t2x.base.errors import Interrupted, UserError
from t2x.layers.arrays import named_leaves
from t2x.train import Constant, train
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.early_stopping import EarlyStopping
from t2x.train.run import TrainingRun

# The loss falls and rises, as some batches are far from the line.
SETTINGS = {'eval_every': 2, 'num_steps': 30, 'patience': 2, 'keep_last': 2}
BAD = dict.fromkeys(range(9, 16), 30.0)


def experiment(**settings):
  return points(BAD, **{**SETTINGS, 'schedule': Constant(peak=0.03), **settings})


def evaluations(folder):
  lines = map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())
  return [line for line in lines if line['split'] == 'eval']


def arrays(folder, step):
  """The arrays of a checkpoint, without the random key."""
  abstract = dict(named_leaves(TrainingRun(experiment(), folder).program.abstract))
  abstract.pop('key')
  return Checkpoints(folder / 'checkpoints').read(step, abstract)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The folder of an uninterrupted run that stops early."""
  folder = tmp_path_factory.mktemp('whole')
  train(experiment(), folder, '')
  return folder


def test_a_run_stops_at_the_second_evaluation_after_the_best_and_keeps_the_best_checkpoint(
  whole, tmp_path
):
  train(experiment(patience=None), tmp_path, '')
  losses = {line['step']: line['loss'] for line in evaluations(tmp_path)}
  steps, values = [*losses], [*losses.values()]
  end = next(i for i in range(len(values)) if i - int(np.argmin(values[: i + 1])) == 2)
  best, last = steps[end - 2], steps[end]
  assert steps == [*range(2, 31, 2)] and best > 2 and last < 30
  stopped = evaluations(whole)
  assert [(line['step'], line['loss']) for line in stopped] == [
    (step, loss) for step, loss in losses.items() if step <= last
  ]
  assert [line['evaluations_since_best'] for line in stopped[-3:]] == [0, 1, 2]
  checkpoints = Checkpoints(whole / 'checkpoints')
  assert checkpoints.best_step() == best and checkpoints.latest_step() == last
  assert best in checkpoints.steps()


def test_a_run_that_stopped_early_has_nothing_to_do(whole, tmp_path, capsys):
  folder = shutil.copytree(whole, tmp_path / 'run')
  train(experiment(), folder, '')
  assert capsys.readouterr().err.startswith(
    f'{folder} is finished: nothing to do; --fresh starts over\n'
  )


def test_an_interrupted_run_stops_at_the_same_evaluation_with_the_same_state(whole, tmp_path):
  # Interrupted at every step: before and after each evaluation, and at the last one.
  for _ in range(200):
    try:
      returned = train(experiment(max_minutes=1e-6), tmp_path, '')
      break
    except Interrupted:
      pass
  lines = [
    [{k: v for k, v in line.items() if k != 'mfu'} for line in evaluations(folder)]
    for folder in (whole, tmp_path)
  ]
  assert lines[0] == lines[1] and returned['loss'] == lines[0][-1]['loss']
  step = lines[0][-1]['step']
  one, other = arrays(whole, step), arrays(tmp_path, step)
  assert one.keys() == other.keys() and len(one) > 2
  for name in one:
    np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]), err_msg=name)


def test_a_run_killed_after_an_evaluation_counts_it_once(whole, tmp_path, monkeypatch):
  for step in evaluations(whole)[-2:]:
    works = TrainingRun.save

    def save(self, at, *arguments, end=step['step'], works=works):
      if at == end:
        raise SystemExit(9)
      return works(self, at, *arguments)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
      patch.setattr(TrainingRun, 'save', save)
      train(experiment(), tmp_path, '')
  train(experiment(), tmp_path, '')
  assert evaluations(tmp_path) == evaluations(whole)


def test_a_run_that_has_stopped_is_not_trained_further(whole, tmp_path, monkeypatch):
  folder = shutil.copytree(whole, tmp_path / 'run')
  step = Checkpoints(folder / 'checkpoints').latest_step()
  monkeypatch.setattr(TrainingRun, 'evaluate', None)
  metrics = train(experiment(), folder, '')
  assert metrics == Checkpoints(folder / 'checkpoints').metrics(step)
  assert evaluations(folder) == evaluations(whole)


def test_the_evaluation_that_stops_a_run_reads_the_whole_split(tmp_path):
  returned = train(experiment(eval_batches=3), tmp_path, '')
  lines = evaluations(tmp_path)
  assert {line['eval_examples'] for line in lines[:-1]} == {12.0}
  assert lines[-1]['eval_examples'] == 4 * (30 + 8) and lines[-1]['step'] < 30
  # The decision rests on the batches that the other evaluations read, also when the run is resumed.
  assert train(experiment(eval_batches=3), tmp_path, '') == returned
  assert evaluations(tmp_path) == lines


def test_a_signal_at_the_last_evaluation_changes_nothing(whole, tmp_path):
  last = evaluations(whole)[-1]['step']
  works = TrainingRun.evaluate

  def evaluate(self, params, step=None, watched=iter):
    if step == last:
      signal.raise_signal(signal.SIGTERM)
    return works(self, params, step, watched)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(TrainingRun, 'evaluate', evaluate)
    with pytest.raises(Interrupted, match=f'interrupted in the evaluation of step {last}'):
      train(experiment(), tmp_path, '')
  train(experiment(), tmp_path, '')
  assert evaluations(tmp_path) == evaluations(whole)


@pytest.mark.parametrize('mode', ['min', 'max'])
def test_equal_and_undefined_values_are_no_improvement(mode):
  state = EarlyStopping(3, 'score', mode)
  sign = 1 if mode == 'min' else -1
  counts = []
  for value in (2.0, 1.0, 1.0, float('nan'), 0.5, 0.7, 0.6, 0.55):
    counts.append(state.add({'score': sign * value})['evaluations_since_best'])
  assert counts == [0, 0, 1, 2, 0, 1, 2, 3] and state.stops and state.best == sign * 0.5


def test_a_first_value_that_is_nan_is_not_the_best():
  state = EarlyStopping(3, 'score', 'min')
  assert state.add({'score': float('nan')}) == {'evaluations_since_best': 1}
  assert state.best is None
  assert state.add({'score': 7.0}) == {'evaluations_since_best': 0} and state.best == 7.0


@pytest.mark.parametrize('values', [(2.0, 1.0, 3.0), (2.0, 3.0, 1.0)])
def test_a_restored_state_has_the_best_value_and_not_the_last(values):
  """A checkpoint has the state before the evaluation at its step, and the metrics of that evaluation."""
  state = EarlyStopping(3, 'score', 'min')
  for value in values[:-1]:
    state.add({'score': value})
  saved, metrics = state.state(), {'score': values[-1]}
  metrics |= state.add(metrics)
  restored = EarlyStopping(3, 'score', 'min')
  restored.restore(saved, metrics)
  assert restored == state and restored.best == 1.0
  assert restored.add({'score': 1.5}) == state.add({'score': 1.5})


@pytest.mark.parametrize(
  'settings', [{'eval_every': 0}, {'eval_every': 10}, {'eval_every': 2, 'patience': 14}]
)
def test_patience_that_cannot_stop_a_run_is_refused(settings):
  with pytest.raises(
    UserError, match=r'Trainer.patience = .* has no effect: .* evaluate more often'
  ):
    experiment(**settings)
