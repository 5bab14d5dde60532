"""A disk that fills while saving: the command ends with one line and nothing saved is lost."""

import os
import shutil
import subprocess
import sys

import pytest

# No file may grow beyond 16 KB: what a full disk does to a checkpoint, but not to a log line.
FULL_DISK = """
import resource, sys
from t2x.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def done(experiment, t2x, tmp_path):
  """A finished run: (config, folder)."""
  config, folder = experiment('causal_lm'), tmp_path / 'run'
  code, _, err = t2x('train', config, '--out', folder)
  assert code == 0, err
  return config, folder


def saved(folder):
  return sorted(int(path.name) for path in (folder / 'checkpoints').iterdir())


@pytest.mark.nightly
def test_a_full_disk_while_saving_leaves_the_last_good_checkpoint(done, t2x, metrics):
  config, folder = done
  shutil.rmtree(folder / 'checkpoints' / '12')
  expected, good = metrics(folder), saved(folder)
  failed = subprocess.run(
    [sys.executable, '-c', FULL_DISK, 'train', str(config), '--out', str(folder)],
    # Modules compiled by Python would be cut off at the limit too, and stay so.
    env=os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONDONTWRITEBYTECODE': '1'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert failed.returncode == 1
  assert f'the checkpoint of step {good[-1]} is intact' in failed.stderr.splitlines()[-1]
  assert 'Traceback' not in failed.stderr
  assert saved(folder) == good
  assert t2x('train', config, '--out', folder)[0] == 0
  assert metrics(folder) == expected
