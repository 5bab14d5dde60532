"""Eight fake devices follow the single device, whatever the layout (in a process of its own)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
import numpy as np
from t2x.commands import load
from t2x.train.run import Run

file, mesh, folder = sys.argv[1:]
run = Run(load([file, mesh]).build(), __import__('pathlib').Path(folder))
state, losses = run.init(), []
batches = run.batches(run.rows('train'))
for _, batch in run.train_batches(batches, 0):
  state, sums, _ = run.train_step(state, batch)
  losses.append(float(sums['loss'][0] / sums['loss'][1]))
sharded = sum(
  not leaf.sharding.is_fully_replicated for leaf in __import__('jax').tree.leaves(state)
)
print(json.dumps({'losses': losses, 'sharded': sharded}))
"""

CONFIG = """
include '{root}/configs/models/small_decoder.gin'
Experiment.task = @CausalLM()
CausalLM:
  source = @TextFiles()
  tokenizer = @Bytes()
  length = 32
TextFiles.train = '{text}'
vocab_size = 264
d_model = 32
num_layers = 2
dropout_rate = 0.1
MLP.hidden_dim = 64
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 8
  batch_size = 16
  schedule = @Constant()
Constant.peak = 1e-2
"""


def train(tmp_path, config, mesh, devices):
  environment = os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'JAX_NUM_CPU_DEVICES': str(devices),
    'T2X_CACHE': str(tmp_path / 'cache'),
  }
  path = ROOT / 'configs' / 'meshes' / f'{mesh}.gin'
  command = [sys.executable, '-c', SCRIPT, config, str(path), str(tmp_path / mesh)]
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.slow
def test_layouts_follow_the_single_device(tmp_path):
  text, config = tmp_path / 'text.txt', tmp_path / 'config.gin'
  text.write_text(Path(__file__).read_text())
  config.write_text(CONFIG.format(root=ROOT, text=text))
  single = train(tmp_path, config, 'single', 1)
  assert single['losses'][-1] < single['losses'][0]
  for mesh in ('ddp', 'fsdp', 'fsdp_tensor'):
    layout = train(tmp_path, config, mesh, 8)
    for a, b in zip(single['losses'], layout['losses'], strict=True):
      assert abs(a - b) <= 1e-5 * abs(a), (mesh, a, b)
    assert bool(layout['sharded']) == (mesh != 'ddp')
