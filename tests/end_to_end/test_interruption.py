"""A run that was killed and run again ends where an uninterrupted one ends, bit by bit."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from public_classes import public_classes

from t2x.tasks import Task

# Every task that a config can bind: a new one needs an experiment in conftest.py.
NAMES = sorted(re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower() for name in public_classes(Task))
OFTEN = ['mixture']
RARELY = [name for name in NAMES if name not in OFTEN]


def start(file, out):
  """`t2x train` in a process of its own."""
  command = [sys.executable, '-m', 't2x', 'train', str(file), '--out', str(out)]
  return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)


def wait_for_step(process, out, step, timeout=300):
  """Returns once a checkpoint of `step` or later is there."""
  end = time.monotonic() + timeout
  while time.monotonic() < end:
    saved = [int(p.name) for p in (out / 'checkpoints').glob('*') if p.name.isdigit()]
    if saved and max(saved) >= step:
      return
    assert process.poll() is None, process.stderr.read().decode()
    time.sleep(0.02)
  raise TimeoutError(f'no checkpoint of step {step}')


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', [*OFTEN, *(pytest.param(name, marks=pytest.mark.nightly) for name in RARELY)]
)
def test_killed_and_run_again_is_bitwise_the_same(name, experiment, t2x, metrics, tmp_path):
  file = experiment(name, 'dropout_rate = 0.1\n')
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'

  def train(out):
    code, _, errors = t2x('train', file, '--out', out)
    assert code == 0, errors

  train(whole)
  process = start(file, killed)
  wait_for_step(process, killed, 4)
  process.kill()
  process.wait()
  train(killed)
  assert metrics(killed) == metrics(whole)
  # A finished run trains nothing more.
  before = (killed / 'metrics.jsonl').read_bytes()
  train(killed)
  assert (killed / 'metrics.jsonl').read_bytes() == before


@pytest.mark.slow
def test_sigterm_saves_and_exits_75(experiment, tmp_path):
  stopped = tmp_path / 'stopped'
  long = experiment('causal_lm', 'Trainer.num_steps = 100000\n')
  process = start(long, stopped)
  wait_for_step(process, stopped, 4)
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=60) == 75
  assert b'run the same command to resume' in process.stderr.read()
