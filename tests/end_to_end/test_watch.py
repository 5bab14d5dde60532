"""`t2x eval --watch` beside a training process, and checkpoints that are removed, damaged or saved again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from t2x.loaded import Loaded
from t2x.runs import watch as watch_module
from t2x.train.checkpoints.store import Checkpoints

KEEP_ALL = 'Trainer.keep_last = 9\nTrainer.checkpoint_every = 4\nExperiment.evaluations = {}\n'


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
  monkeypatch.setattr(watch_module, 'POLL', 0.05)


@pytest.fixture
def lines():
  def read(run):
    return list(map(json.loads, (run / 'watch' / 'metrics.jsonl').read_text().splitlines()))

  return read


@pytest.fixture
def trained(experiment, t2x, tmp_path):
  run = tmp_path / 'run'
  assert t2x('train', experiment('causal_lm', KEEP_ALL), '--out', run)[0] == 0
  return run


def test_each_checkpoint_of_a_running_training_is_evaluated_once(
  experiment, t2x, tmp_path, lines, metrics
):
  run = tmp_path / 'run'
  run.mkdir()
  command = ['train', experiment('causal_lm', KEEP_ALL), '--out', run]
  with subprocess.Popen([sys.executable, '-m', 't2x', *map(str, command)]) as process:
    while not (run / 'status.json').exists():
      assert process.poll() is None
    code, out, err = t2x('eval', run, '--watch', '--json')
    assert process.wait() == 0
  assert code == 0, err
  printed = list(map(json.loads, out.splitlines()))
  # Evaluation steps 6 and 12, and multiples of 4.
  assert [line['step'] for line in printed] == [4, 6, 8, 12]
  mine = {line['step']: line['loss'] for line in lines(run)}
  theirs = {line['step']: line['loss'] for line in metrics(run) if line['split'] == 'eval'}
  assert {step: mine[step] for step in theirs} == pytest.approx(theirs, rel=1e-6)
  assert len(list((run / 'watch' / 'tensorboard').iterdir())) == 1
  # A second watcher finds nothing to do, and other settings are not mixed with these.
  before = (run / 'watch' / 'metrics.jsonl').read_bytes()
  assert t2x('eval', run, '--watch', '--json')[:2] == (0, '')
  assert (run / 'watch' / 'metrics.jsonl').read_bytes() == before
  code, _, err = t2x('eval', run, '--watch', '--split', 'train')
  assert (code, 'has metrics of another config, split or limit' in err) == (2, True)
  code, _, err = t2x('eval', run, '--watch', '--checkpoint', '4')
  assert (code, '--checkpoint has no effect on --watch' in err) == (2, True)
  code, _, err = t2x('eval', tmp_path / 'none', '--watch')
  assert (code, 'is not a run folder' in err) == (2, True)


def test_removed_damaged_and_repeated_checkpoints(trained, t2x, lines, monkeypatch, caplog):
  checkpoints = trained / 'checkpoints'
  read = Checkpoints.read

  def remove(self, step, abstract):
    if step == 4:
      shutil.rmtree(checkpoints / '4')
    return read(self, step, abstract)

  monkeypatch.setattr(Checkpoints, 'read', remove)
  arrays = max((checkpoints / '8').rglob('*'), key=lambda path: path.stat().st_size)
  arrays.write_bytes(arrays.read_bytes()[:-1])
  code, _, err = t2x('eval', trained, '--watch')
  assert code == 0, err
  assert 'checkpoint of step 4 was removed before it was read' in caplog.text
  assert 'checkpoint of step 8 is corrupt' in caplog.text
  assert [line['step'] for line in lines(trained)] == [6, 12]
  # A run that goes back saves a step again: the metrics of it and of later steps are replaced.
  sums = checkpoints / '6' / 'checksums.json'
  sums.write_bytes(sums.read_bytes() + b'\n')
  shutil.rmtree(checkpoints / '12')
  assert t2x('eval', trained, '--watch')[0] == 0
  assert [line['step'] for line in lines(trained)] == [6]


def test_an_interrupted_evaluation_is_repeated_and_a_failed_run_ends_it(
  trained, t2x, lines, monkeypatch
):
  def interrupt(self, *args, **settings):
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(5)

  with monkeypatch.context() as patch:
    patch.setattr(Loaded, 'evaluate', interrupt)
    code, _, err = t2x('eval', trained, '--watch')
  assert (code, err) == (75, 't2x: interrupted; run the same command to resume\n')
  status = json.loads((trained / 'status.json').read_text())
  (trained / 'status.json').write_text(json.dumps(status | {'state': 'failed', 'reason': 'NaN'}))
  code, _, err = t2x('eval', trained, '--watch')
  assert (code, 't2x: the run has failed: NaN' in err) == (1, True)
  assert [line['step'] for line in lines(trained)] == [4, 6, 8, 12]
