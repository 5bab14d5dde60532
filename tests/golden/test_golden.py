"""Training gives the recorded losses: see record.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Compiled as in use: the tests' own settings round differently.
TEST_SETTINGS = ('JAX_DISABLE_MOST_OPTIMIZATIONS', 'XLA_FLAGS')
FAMILIES = sorted(path.stem for path in Path(__file__).parent.glob('family-*.json'))
RUNS = sorted({path.stem for path in Path(__file__).parent.glob('*.json')} - {*FAMILIES})


def check(*names):
  env = {name: value for name, value in os.environ.items() if name not in TEST_SETTINGS}
  command = [sys.executable, '-m', 'tests.golden.record', '--check', *names]
  done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr[-2000:]
  if 'left out' in done.stdout:
    pytest.skip(done.stdout)
  assert done.stdout.count('differs by') + done.stdout.count('other data') == len(names)


@pytest.mark.slow
def test_an_encoder_decoder_trains_as_recorded():
  check('family-t5')


@pytest.mark.nightly
def test_a_tiny_model_of_every_family_trains_as_recorded():
  assert len(FAMILIES) == 15
  check(*FAMILIES)


@pytest.mark.nightly
@pytest.mark.parametrize('name', RUNS)
def test_shipped_runs_train_as_recorded(name):
  check(name)
