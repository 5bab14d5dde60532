"""Whole runs of a line through points: what stops, skips, goes back and saves, and what comes of it."""

import dataclasses
import json
import os
import shutil
import signal
from multiprocessing import active_children
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from points import BATCH, Points, points

from t2x.base.errors import Interrupted, UserError
from t2x.data import Batches
from t2x.data.prepared_folders import former_fingerprints, is_former
from t2x.train import LinearDecay, Rollback, Skip, train
from t2x.train.checkpoints import orbax_files
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.interruptions import Watchdog
from t2x.train.logs.run_logger import RunLogger
from t2x.train.recovery import Diverged
from t2x.train.run import TrainingRun


def metrics(folder):
  lines = map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())
  return [
    {k: v for k, v in line.items() if k != 'mfu' and not k.endswith('_per_second')}
    for line in lines
  ]


def train_lines(folder):
  return [line for line in metrics(folder) if line['split'] == 'train']


@dataclasses.dataclass
class AtStep:
  """A metric writer that does something when the train line of a step is written."""

  at: int
  do: Any

  def __call__(self, folder):
    return self

  def write(self, step, split, metrics):
    if split == 'train' and step == self.at:
      self.do()

  def close(self):
    pass


class Died(BaseException):
  """Stands for a kill."""


def die():
  raise Died


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """An uninterrupted run's metrics."""
  folder = tmp_path_factory.mktemp('whole')
  train(points(), folder, '')
  return metrics(folder)


def test_a_writer_that_cannot_be_made_leaves_no_live_line(tmp_path, monkeypatch):
  monkeypatch.setattr(
    't2x.train.logs.run_logger.Terminal', lambda *args: pytest.fail('a live line')
  )

  def fail(folder):
    raise UserError('no such project')

  with pytest.raises(UserError, match='no such project'):
    train(points(writers=(fail,)), tmp_path, '')


def test_the_time_limit_saves_and_the_same_command_resumes(tmp_path, whole):
  with pytest.raises(Interrupted, match='saved at step 1; run the same command to resume') as stop:
    train(points(max_minutes=1e-6), tmp_path, '')
  assert stop.value.exit_code == 75
  with pytest.raises(Interrupted, match='saved at step 2'):
    train(points(max_minutes=1e-6), tmp_path, '')
  train(points(max_minutes=60.0), tmp_path, '')
  assert metrics(tmp_path) == whole


def test_a_run_killed_anywhere_resumes_to_the_same_result(tmp_path, whole):
  for at in (3, 12, 21):
    with pytest.raises(Died):
      train(points(writers=(AtStep(at, die),)), tmp_path, '')
  train(points(), tmp_path, '')
  assert metrics(tmp_path) == whole


EVALUATES = {'eval_every': 10, 'keep_last': 9}


@pytest.fixture(scope='module')
def evaluated(tmp_path_factory):
  """The folder of an uninterrupted run with three evaluations."""
  folder = tmp_path_factory.mktemp('evaluated')
  train(points(**EVALUATES), folder, '')
  return folder


@pytest.mark.parametrize('at', [10, 30])
@pytest.mark.parametrize(
  'place', ['TrainingRun.evaluate', 'RunLogger.evaluation', 'Checkpoints.attach']
)
def test_an_evaluation_that_fails_costs_no_training(evaluated, tmp_path, at, place, monkeypatch):
  kind, name = place.split('.')
  kind = {'TrainingRun': TrainingRun, 'RunLogger': RunLogger, 'Checkpoints': Checkpoints}[kind]
  works, seen = getattr(kind, name), []

  def fails(self, *args, **kwargs):
    seen.append(args)
    if len(seen) < at // 10 or kind is RunLogger:
      done = works(self, *args, **kwargs)
    return die() if len(seen) == at // 10 else done

  with monkeypatch.context() as patch:
    patch.setattr(kind, name, fails)
    with pytest.raises(Died):
      train(points(**EVALUATES), tmp_path, '')
  checkpoints = Checkpoints(tmp_path / 'checkpoints')
  assert checkpoints.latest_step() == at
  assert checkpoints.metrics(at) is None
  returned = train(points(**EVALUATES), tmp_path, '')
  assert metrics(tmp_path) == metrics(evaluated)
  assert returned['loss'] == metrics(evaluated)[-1]['loss'] == checkpoints.metrics(30)['loss']
  assert checkpoints.best_step() == Checkpoints(evaluated / 'checkpoints').best_step()
  for file in ('samples.jsonl', 'timing.jsonl'):
    lines = [json.loads(line) for line in (tmp_path / file).read_text().splitlines()]
    written = [line['step'] for line in lines if line['split'] == 'eval']
    assert written == sorted(set(written))


def test_a_finished_run_is_not_evaluated_again(evaluated, tmp_path, monkeypatch):
  folder = shutil.copytree(evaluated, tmp_path / 'run')
  monkeypatch.setattr(TrainingRun, 'evaluate', die)
  assert train(points(**EVALUATES), folder, '') == Checkpoints(folder / 'checkpoints').metrics(30)
  assert metrics(folder) == metrics(evaluated)


def test_a_finished_run_says_that_nothing_is_to_do(evaluated, tmp_path, capsys):
  folder, message = tmp_path / 'run', 'run is finished: nothing to do; --fresh starts over'
  shutil.copytree(evaluated, folder)
  for quiet in (False, True):
    train(points(**EVALUATES), folder, '', quiet=quiet)
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith(message)
    assert not any(line.startswith('steps') for line in others)
    assert any(line.startswith('finished    30 steps') for line in others)
  # The summary is that of the training.
  assert (folder / 'summary.txt').read_text() == (evaluated / 'summary.txt').read_text()
  shutil.rmtree(folder / 'checkpoints' / '30')
  train(points(**EVALUATES), folder, '')
  resumed = capsys.readouterr().err
  assert '(resumed)' in resumed
  assert message not in resumed


def test_a_run_that_is_stopped_leaves_the_evaluation_to_its_next_start(evaluated, tmp_path):
  # The line of step 9 is written at step 10.
  ask = AtStep(9, lambda: signal.raise_signal(signal.SIGTERM))
  experiment = points(**EVALUATES | {'log_every': 1}, writers=(ask,))
  with pytest.raises(Interrupted, match='saved at step 10'):
    train(experiment, tmp_path, '')
  assert [line for line in metrics(tmp_path) if line['split'] == 'eval'] == []
  train(points(**EVALUATES | {'log_every': 1}), tmp_path, '')
  evals = [
    [line for line in metrics(one) if line['split'] == 'eval'] for one in (tmp_path, evaluated)
  ]
  assert evals[0] == evals[1]


def test_the_watchdog_watches_every_batch_of_an_evaluation(tmp_path, monkeypatch):
  watched = []

  class Listening(Watchdog):
    def waiting(self, what):
      watched.append(what)
      return super().waiting(what)

  monkeypatch.setattr('t2x.train.loop.Watchdog', Listening)
  train(points(num_steps=2, eval_every=1, eval_batches=2), tmp_path, '')
  first = [what for what in watched if what.endswith('evaluation of step 1')]
  assert [what.split()[1] for what in first[:3]] == ['1', '2', '3']


def test_not_finite_stops_and_notes_the_batch_for_replay(tmp_path):
  experiment = points({8: np.nan})
  with pytest.raises(UserError, match=r'not finite at step 8: .*loss nan') as error:
    train(experiment, tmp_path, '')
  message = str(error.value)
  assert error.value.exit_code == 1
  assert 'non-finite gradients: offset, slope;' in message
  assert 'the last checkpoint is of step 5' in message
  fault = json.loads((tmp_path / 'fault-8.json').read_text())
  assert str(tmp_path / 'fault-8.json') in message
  assert fault['gradients'] == ['offset', 'slope']
  rows = experiment.task.rows('train')
  replayed = np.stack([rows[row]['x'] for row in fault['rows']])
  batches = Batches(rows, batch_size=BATCH, seed=0)
  np.testing.assert_array_equal(replayed, batches[fault['source_step']]['x'])
  assert all(np.isnan(rows[row]['y']) for row in fault['rows'])


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightedPoints(Points):
  """Points of weight 0 where their y is 1e6."""

  def target_weights(self, batch):
    return (batch['y'] != 1e6).astype(jnp.float32)


def test_a_batch_of_weight_0_does_not_end_a_run_and_its_loss_is_not_a_number(tmp_path):
  experiment = points({8: 1e6}, log_every=1, num_steps=10)
  task = WeightedPoints(**dataclasses.asdict(experiment.task) | {'source': experiment.task.source})
  train(dataclasses.replace(experiment, task=task), tmp_path, '')
  losses = {line['step']: line['loss'] for line in train_lines(tmp_path)}
  assert losses[8] is None
  assert all(loss > 0 for step, loss in losses.items() if step != 8)


def slope(folder, step):
  array = Checkpoints(folder / 'checkpoints').read(
    step, {'params.slope': jax.ShapeDtypeStruct((3,), jnp.float32)}
  )
  return np.asarray(array['params.slope'])


def test_skip_leaves_the_parameters_counts_and_gives_up(tmp_path):
  settings = {'checkpoint_every': 1, 'keep_last': 99, 'log_every': 1, 'num_steps': 12}
  train(points({7: np.nan, 8: np.inf}, nonfinite=Skip(limit=2), **settings), tmp_path / 'a', '')
  skipped = [line['skipped'] for line in train_lines(tmp_path / 'a')]
  assert skipped == [float(step in (7, 8)) for step in range(1, 13)]
  before = slope(tmp_path / 'a', 6)
  np.testing.assert_array_equal(slope(tmp_path / 'a', 8), before)
  assert not np.array_equal(slope(tmp_path / 'a', 9), before)
  bad = {7: np.nan, 8: np.inf, 9: np.nan}
  with pytest.raises(UserError, match=r'not finite at step 9 \(3 consecutive steps\)'):
    train(points(bad, nonfinite=Skip(limit=2), **settings), tmp_path / 'b', '')
  assert (tmp_path / 'b' / 'fault-7.json').exists()


def test_the_logged_learning_rate_matches_the_last_update(tmp_path):
  """With SGD it is the quotient of the norms of update and gradient. The run dies and goes on after skipped steps."""
  settings = {'nonfinite': Skip(), 'schedule': LinearDecay(peak=0.01), 'layer_norms': True}
  settings |= {'num_steps': 12, 'log_every': 1, 'checkpoint_every': 1}
  bad = {1: np.inf, 4: np.nan, 5: np.inf, 11: np.nan}
  with pytest.raises(Died):
    train(points(bad, writers=(AtStep(8, die),), **settings), tmp_path, '')
  train(points(bad, **settings), tmp_path, '')
  logged = [line['learning_rate'] for line in train_lines(tmp_path)]
  norms = map(json.loads, (tmp_path / 'norms.jsonl').read_text().splitlines())
  for rate, norm in zip(logged, norms, strict=True):
    if norm['step'] not in bad:
      (label,) = {name.partition('/')[2] for name in norm if name.startswith('update/slope')}
      used = norm[f'update/{label}'] / norm[f'gradient/{label}']
      assert rate == pytest.approx(used, rel=1e-5), norm['step']
  assert (logged[3], logged[4], logged[10]) == (logged[2], logged[2], logged[9])


SPIKE = {27: 100.0, 28: 100.0, 29: 100.0}
GOES_BACK = {'rollback': Rollback(patience=3), 'num_steps': 40}


@pytest.fixture(scope='module')
def went_back(tmp_path_factory):
  """The folder of a run that met a spike and left its batches out."""
  folder = tmp_path_factory.mktemp('went_back')
  train(points(SPIKE, **GOES_BACK), folder, '')
  return folder


def test_a_spike_restores_the_previous_checkpoint_and_skips_its_batches(went_back):
  assert json.loads((went_back / 'skips.json').read_text()) == [[26, 3]]
  steps = [line['step'] for line in train_lines(went_back)]
  assert steps == [*range(3, 40, 3), 40]
  assert max(line['loss'] for line in train_lines(went_back)[5:]) < 10.0


@pytest.mark.parametrize('when', ['before', 'meanwhile', 'after'])
def test_a_run_killed_during_a_rollback_ends_the_same(went_back, tmp_path, when, monkeypatch):
  if when == 'meanwhile':
    with monkeypatch.context() as patch:
      # The checkpoints are removed, the skipped batches not yet written.
      remove = Checkpoints.remove_after
      patch.setattr(Checkpoints, 'remove_after', lambda *args: (remove(*args), die()))
      with pytest.raises(Died):
        train(points(SPIKE, **GOES_BACK), tmp_path, '')
  else:
    at = {'before': 24, 'after': 30}[when]
    with pytest.raises(Died):
      train(points(SPIKE, writers=(AtStep(at, die),), **GOES_BACK), tmp_path, '')
  train(points(SPIKE, **GOES_BACK), tmp_path, '')
  assert metrics(tmp_path) == metrics(went_back)


def test_a_signal_during_a_rollback_is_not_lost(tmp_path):
  # The line of step 27 is written at step 30, just before the spike is seen.
  ask = AtStep(27, lambda: signal.raise_signal(signal.SIGTERM))
  with pytest.raises(Interrupted, match='saved at step 26'):
    train(points(SPIKE, writers=(ask,), **GOES_BACK), tmp_path, '')
  assert (tmp_path / 'skips.json').exists()


def test_a_rollback_without_a_checkpoint_before_the_spike_deletes_none(tmp_path):
  settings = GOES_BACK | {'checkpoint_every': 1, 'keep_last': 2}
  with pytest.raises(Diverged, match=r'before which no checkpoint is left: .*checkpoint_every'):
    train(points(SPIKE, **settings), tmp_path, '')
  assert Checkpoints(tmp_path / 'checkpoints').latest_step() >= 27
  assert not (tmp_path / 'skips.json').exists()


def test_a_rollback_to_a_damaged_checkpoint_uses_the_one_before(tmp_path):
  def damage():
    (tmp_path / 'checkpoints' / '25' / 'checksums.json').write_text('{"state": [1, 1]}')

  settings = GOES_BACK | {'keep_last': 3, 'writers': (AtStep(27, damage),)}
  train(points(SPIKE, **settings), tmp_path, '')
  assert json.loads((tmp_path / 'skips.json').read_text()) == [[26, 3]]
  assert [line['step'] for line in train_lines(tmp_path)] == [*range(3, 40, 3), 40]


def test_a_run_whose_last_save_failed_is_not_finished(tmp_path, monkeypatch):
  run = points(max_failed_saves=3, num_steps=12, checkpoint_every=5)
  real = orbax_files.save

  def save(manager, step, *rest):
    if step == 12:
      raise OSError('no space left')
    real(manager, step, *rest)

  with monkeypatch.context() as patch:
    patch.setattr('t2x.train.checkpoints.orbax_files.save', save)
    with pytest.raises(UserError, match='the checkpoint of step 10 is intact') as error:
      train(run, tmp_path, '')
  assert error.value.exit_code == 1
  assert json.loads((tmp_path / 'status.json').read_text())['state'] == 'failed'
  train(run, tmp_path, '')
  assert Checkpoints(tmp_path / 'checkpoints').latest_step() == 12


@pytest.mark.parametrize('changed', [False, True])
def test_a_run_with_fingerprints_of_version_1_is_resumed_unless_its_data_changed(
  tmp_path, monkeypatch, changed
):
  former = ['version 1']
  fingerprint = property(lambda _: former[0] if is_former() else 'version 2')
  monkeypatch.setattr(Batches, 'fingerprint', fingerprint)
  with monkeypatch.context() as patch, former_fingerprints(), pytest.raises(Died):
    patch.setattr('t2x.train.loop.FINGERPRINTS', 1)
    train(points(writers=(AtStep(9, die),)), tmp_path, '')
  former[0] = 'other data' if changed else former[0]
  if changed:
    with pytest.raises(UserError, match='changed since its checkpoint'):
      train(points(), tmp_path, '')
  else:
    train(points(), tmp_path, '')
    former[0] = 'not asked for'
    train(points(), tmp_path, '')


@pytest.mark.parametrize('at', [10, 30])
def test_a_signal_ends_an_evaluation_which_a_resumed_run_repeats(tmp_path, monkeypatch, at):
  run, real = points(eval_every=10), TrainingRun.evaluation_batches
  train(run, tmp_path / 'whole', '')

  def evaluation_batches(self, *args):
    self.checkpoints.wait()
    if self.checkpoints.latest_step() == at:
      signal.raise_signal(signal.SIGTERM)
    return real(self, *args)

  with monkeypatch.context() as patch:
    patch.setattr(TrainingRun, 'evaluation_batches', evaluation_batches)
    with pytest.raises(Interrupted, match=f'interrupted in the evaluation of step {at}, which is'):
      train(run, tmp_path / 'run', '')
  assert Checkpoints(tmp_path / 'run' / 'checkpoints').latest_step() == at
  train(run, tmp_path / 'run', '')
  assert metrics(tmp_path / 'run') == metrics(tmp_path / 'whole')


def test_permanent_checkpoints_are_kept_and_the_others_rotate(tmp_path):
  train(points(checkpoint_every=2, keep_every=8), tmp_path, '')
  assert Checkpoints(tmp_path / 'checkpoints').steps() == [8, 16, 24, 28, 30]


def test_a_checkpoint_is_due_by_the_clock(tmp_path):
  settings = {'checkpoint_every': 0, 'keep_last': 99, 'num_steps': 9}
  train(points(checkpoint_minutes=1e-9, **settings), tmp_path / 'soon', '')
  assert Checkpoints(tmp_path / 'soon' / 'checkpoints').steps() == [3, 6, 9]
  train(points(checkpoint_minutes=60.0, **settings), tmp_path / 'late', '')
  assert Checkpoints(tmp_path / 'late' / 'checkpoints').steps() == [9]


def test_the_time_of_saving_is_logged_for_each_checkpoint(went_back):
  lines = map(json.loads, (went_back / 'timing.jsonl').read_text().splitlines())
  waited = {line['step']: line['waited'] for line in lines if line['split'] == 'checkpoint'}
  assert sorted(waited) == list(range(5, 41, 5))
  assert all(seconds >= 0 for seconds in waited.values())
  events = b''.join(path.read_bytes() for path in (went_back / 'tensorboard').iterdir())
  assert b'checkpoint/waited' in events


def test_a_killed_data_worker_ends_the_run_and_is_named(tmp_path):
  def kill():
    os.kill(active_children()[0].pid, signal.SIGKILL)

  with pytest.raises(RuntimeError, match=r'the data worker t2x-data-0 died .*exit code -9'):
    train(
      points(num_workers=1, num_steps=2000, writers=(AtStep(3, kill),), checkpoint_every=0),
      tmp_path,
      '',
    )


def test_a_config_that_could_not_be_written_leaves_the_old_one(tmp_path, monkeypatch):
  (tmp_path / 'config.gin').write_text('old')
  with monkeypatch.context() as patch:
    patch.setattr('t2x.base.files.os.replace', lambda *paths: die())
    with pytest.raises(Died):
      train(points(), tmp_path, 'new')
  assert (tmp_path / 'config.gin').read_text() == 'old'
