"""Trackers get config, metrics and summary once, whatever the run and the tracker go through."""

import json
import logging
import math
import sys
import types
from pathlib import Path

import pytest
from points import points

from t2x import config as config_lib
from t2x.base.errors import Interrupted, UserError
from t2x.config import calls
from t2x.experiments import read_config
from t2x.train import MLflow, WandB, train
from t2x.train.logs.trackers import Guarded, Tracker, config_values
from t2x.train.logs.writers import MetricWriter

RUNS = Path(__file__).parents[3] / 'configs' / 'runs'
TEXT = """steps = 300

Experiment:
  task = @CausalLM()

Trainer:
  num_steps = %steps
  batch_size = 8

a/b/MLP:
  names = [
    'first =',
    'second',
  ]
  rate = 1e-3
  bias = None
"""


class Folder(Tracker):
  """A tracker that keeps what it gets in a list."""

  packages = ('json',)

  def __init__(self, folder):
    super().__init__(folder, 'folder.json')
    self.sent, self.ends = [], []

  def _send(self, step, numbers):
    self.sent.append((step, numbers))

  def _summarise(self, summary):
    self.sent.append(dict(summary))

  def _end(self, finished):
    self.ends.append(finished)


def test_values_of_a_config_are_plain_and_macros_are_replaced():
  assert config_values(TEXT) == {
    'Experiment.task': '@CausalLM()',
    'Trainer.num_steps': 300,
    'Trainer.batch_size': 8,
    'a/b/MLP.names': "[ 'first =', 'second', ]",
    'a/b/MLP.rate': 1e-3,
    'a/b/MLP.bias': None,
  }
  assert config_values('') == {}


# One without scopes; one with scopes and with settings of several lines.
@pytest.mark.parametrize('name', ['quickstart', 'libreoffice_mlm_tlm'])
def test_trackers_record_the_values_of_the_config(name):
  config = read_config([RUNS / f'{name}.gin'])
  values = config_values(config_lib.render(config))
  bound = {
    f'{"/".join([statement.scope] * bool(statement.scope) + [config.name_of(call.part)])}.{name}'
    for call in calls(config.root)
    for name, statement in call.bound.items()
  }
  assert values.keys() == bound
  steps = config.build().trainer.num_steps
  assert values['Trainer.num_steps'] == steps


def test_numbers_are_sent_by_split_and_texts_are_not(tmp_path):
  tracker = Folder(tmp_path)
  assert isinstance(tracker, MetricWriter)
  tracker.write(3, 'eval', {'loss': 1, 'bleu': 'signature', 'none': None})
  assert tracker.sent == [(3, {'eval/loss': 1.0})]


def test_steps_never_go_backwards_and_no_new_step_is_lost(tmp_path):
  first = Folder(tmp_path)
  for step in (10, 20, 30):
    first.write(step, 'train', {'loss': 1.0})
  first.write(20, 'eval', {'loss': 2.0})
  resumed = Folder(tmp_path)
  for step in (20, 30, 40):
    resumed.write(step, 'train', {'loss': 1.0})
  resumed.write(20, 'eval', {'loss': 2.0})
  resumed.write(30, 'eval', {'loss': 2.0})
  assert [(step, *numbers) for step, numbers in resumed.sent] == [
    (40, 'train/loss'),
    (30, 'eval/loss'),
  ]


def test_a_resumed_run_sends_every_step_once(tmp_path):
  trackers = []

  def build(folder):
    trackers.append(Folder(folder))
    return trackers[-1]

  settings = {'writers': (build,), 'eval_every': 10, 'checkpoint_every': 10, 'keep_last': 9}
  with pytest.raises(Interrupted):
    train(points(max_minutes=1e-6, **settings), tmp_path, TEXT)
  train(points(**settings), tmp_path, TEXT)
  # The state before step 20, as after a kill.
  for step in (20, 30):
    (tmp_path / 'checkpoints' / str(step)).rename(tmp_path / f'gone-{step}')
  train(points(**settings), tmp_path, TEXT)
  assert [tracker.ends for tracker in trackers] == [[False], [True], [True]]
  sent = [item for tracker in trackers for item in tracker.sent if isinstance(item, tuple)]
  steps = [step for step, numbers in sent if 'train/loss' in numbers]
  assert steps == list(range(3, 31, 3))
  summary = trackers[1].sent[-1]
  assert summary['best/loss'] <= summary['last/loss']
  assert {'best/step', 'seconds'} <= summary.keys()
  assert trackers[0].config()['Trainer.num_steps'] == 300


class Clock:
  now = 0.0

  def __call__(self):
    return self.now


def failing(times):
  """A constructor of writers whose first calls raise, and the calls that did not."""
  calls = []

  class Flaky:
    def __init__(self, folder):
      pass

    def write(self, step, split, metrics):
      times[0] -= 1
      if times[0] >= 0:
        raise ConnectionError('no route')
      calls.append(step)

    def close(self):
      raise ConnectionError('no route')

  return Flaky, calls


def test_an_exception_is_logged_once_and_the_writer_is_tried_again(tmp_path, caplog):
  build, calls = failing([2])
  clock = Clock()
  writer = Guarded(build, tmp_path, clock)
  # Tried at 0, 60 and 180 seconds.
  for clock.now in (0, 30, 59, 61, 100, 179, 182, 183):
    writer.write(int(clock.now), 'train', {})
  assert calls == [182, 183]
  messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
  assert len(messages) == 2
  assert 'Flaky: ConnectionError: no route; training continues' in messages[0]
  assert messages[1] == 'Flaky works again; 6 writes were lost'
  writer.close()


def test_a_constructor_that_fails_is_tried_again_but_a_users_error_is_raised(tmp_path, caplog):
  clock, attempts = Clock(), []

  def build(folder):
    attempts.append(folder)
    if len(attempts) == 1:
      raise TimeoutError('slow')
    return Folder(folder)

  writer = Guarded(build, tmp_path, clock)
  clock.now = 61
  writer.write(1, 'train', {})
  assert len(attempts) == 2 and 'build: TimeoutError: slow' in caplog.text

  def refuse(folder):
    raise UserError('not installed')

  with pytest.raises(UserError, match='not installed'):
    Guarded(refuse, tmp_path)


def test_a_run_ends_well_whatever_its_tracker_raises(tmp_path, caplog):
  build, _ = failing([math.inf])
  train(points(writers=(build,)), tmp_path, '')
  assert caplog.text.count('Flaky: ConnectionError: no route; training continues') == 1
  assert json.loads((tmp_path / 'status.json').read_text())['state'] == 'done'


@pytest.mark.parametrize(('tracker', 'module'), [(WandB, 'wandb'), (MLflow, 'mlflow')])
def test_a_missing_package_is_named(tmp_path, monkeypatch, tracker, module):
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(UserError, match=rf"{module}: pip install 't2x\[trackers\]'"):
    tracker(tmp_path)


def fake_wandb():
  class Run(types.SimpleNamespace):
    def log(self, values, step, commit):
      assert commit
      self.calls.append(step)
      self.logs.append(values)

    def define_metric(self, name, step_metric=None):
      self.axes[name] = step_metric

    def finish(self, exit_code):
      self.code = exit_code

  runs = []

  def init(**settings):
    runs.append(Run(settings=settings, logs=[], calls=[], axes={}, summary={}))
    return runs[-1]

  return types.SimpleNamespace(init=init, runs=runs)


def test_wandb_gets_name_config_and_summary_and_continues_its_run(tmp_path, monkeypatch):
  fake = fake_wandb()
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  folder = tmp_path / 'quickstart'
  folder.mkdir()
  (folder / 'config.gin').write_text(TEXT)
  for step in (1, 2):
    writer = WandB(folder, project='p')
    writer.write(1, 'train', {'loss': 1.0})
    writer.write(step, 'eval', {'loss': 2.0})
    if step == 2:
      writer.finish({'best/loss': 2.0})
    writer.close()
  first, second = fake.runs
  assert first.settings['id'] == second.settings['id']
  assert first.settings['name'] == 'quickstart' and first.settings['resume'] == 'allow'
  assert first.settings['config']['Trainer.num_steps'] == 300
  assert first.logs == [{'step': 1, 'train/loss': 1.0}, {'step': 1, 'eval/loss': 2.0}]
  assert second.logs == [{'step': 2, 'eval/loss': 2.0}]
  assert first.calls + second.calls == [0, 1, 2]
  assert first.axes == {'step': None, '*': 'step'}
  assert (first.code, second.code, second.summary) == (1, 0, {'best/loss': 2.0})


class FakeClient:
  """MlflowClient with a store in memory."""

  def __init__(self, store, uri):
    self.store, self.uri = store, uri

  def get_experiment_by_name(self, name):
    known = name in self.store['experiments']
    return types.SimpleNamespace(experiment_id='7') if known else None

  def create_experiment(self, name):
    self.store['experiments'].append(name)
    return '7'

  def create_run(self, experiment_id, run_name):
    self.store['runs'].append((experiment_id, run_name))
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id='r1'))

  def log_batch(self, run_id, metrics=(), params=()):
    assert run_id == 'r1' and len(params) <= 100
    self.store['metrics'] += [(m.key, m.value, m.step) for m in metrics]
    self.store['params'] |= {p.key: p.value for p in params}

  def update_run(self, run_id, status):
    self.store['states'].append(status)

  def set_terminated(self, run_id, status):
    self.store['states'].append(status)

  def set_tag(self, run_id, key, value):
    self.store['tags'][key] = value


def test_mlflow_gets_name_config_and_summary_and_continues_its_run(tmp_path, monkeypatch):
  store = {name: [] for name in ('experiments', 'runs', 'metrics', 'states')}
  store |= {'params': {}, 'tags': {}}
  entities = types.SimpleNamespace(
    Param=lambda key, value: types.SimpleNamespace(key=key, value=value),
    Metric=lambda key, value, timestamp, step: types.SimpleNamespace(
      key=key, value=value, step=step
    ),
  )
  fake = types.SimpleNamespace(
    entities=entities, MlflowClient=lambda tracking_uri: FakeClient(store, tracking_uri)
  )
  monkeypatch.setitem(sys.modules, 'mlflow', fake)
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.gin').write_text(TEXT + '  text = "a,b"\n')
  for step in (1, 2):
    writer = MLflow(tmp_path / 'run', uri='http://server', experiment='e')
    writer.write(step, 'train', {'loss': 1.0, 'bad': math.nan, 'a,b': 2.0})
    if step == 2:
      writer.finish({'best/loss': 1.0, 'best/name': 'x'})
    writer.close()
  assert (store['experiments'], store['runs']) == (['e'], [('7', 'run')])
  assert store['params']['Trainer.num_steps'] == '300'
  assert store['metrics'] == [
    ('train/loss', 1.0, 1),
    ('train/a_b', 2.0, 1),
    ('train/loss', 1.0, 2),
    ('train/a_b', 2.0, 2),
    ('best/loss', 1.0, 2),
  ]
  assert store['states'] == ['KILLED', 'RUNNING', 'FINISHED']
  assert store['tags'] == {'best/name': 'x'}
