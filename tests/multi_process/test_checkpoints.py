"""A checkpoint of two processes with four devices each goes on in one process with one device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FSDP = 'Trainer.num_steps = 16\nExperiment.mesh = @Mesh()\nMesh.data = 1\nMesh.fsdp = -1\n'


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_is_resumed_by_one(config, place, environment, tmp_path):
  command = [sys.executable, str(HERE / 'save_and_go_on.py')]
  launch = [sys.executable, '-m', 't2x.launch.processes', '-n', '2', '--']
  told = {}
  for what, devices in (('save', 4), ('restore', 1)):
    done = subprocess.run(
      [*(launch if what == 'save' else []), *command, what, config('causal_lm', FSDP), tmp_path],
      env=environment(devices),
      capture_output=True,
      text=True,
      timeout=150,
      check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.removeprefix('[0] ') for line in done.stdout.splitlines()]
    told[what] = json.loads(next(line for line in lines if line.startswith('{')))
  saved, restored = told['save'], told['restore']
  assert (saved['shard'], restored['shard']) == (1 / 8, 1)
  assert restored['digest'] == saved['digest']
  assert restored['losses'] == pytest.approx(saved['losses'], rel=1e-5)
  assert len(set(saved['losses'])) == 10
