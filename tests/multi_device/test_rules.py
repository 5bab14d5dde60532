"""On eight fake devices (a process of its own): biases of experts move as on one device, also after a resume,
which gives the same bits as a run without one."""

import pytest
from eight_devices import ROOT, run_on_eight_devices

SCRIPT = """
import sys
from pathlib import Path

import numpy as np

from t2x.experiments import read_config
from t2x.train import TrainingRun

folder = Path(sys.argv[1])
(folder / 'text.txt').write_text('the cat sees the dog. ' * 400)
(folder / 'run.gin').write_text(f'''
include '{sys.argv[2]}/configs/models/small_experts.gin'
d_model = 16
num_layers = 2
vocab_size = 264
GatedMLP.hidden_dim = 16
MultiHeadAttention.num_heads = 2
MixtureOfExperts.dispatch = @DISPATCH()
TopK.balance = 0.0
TopK.bias = @LoadBias
LoadBias.rate = 0.01
Experiment.task = @CausalLM()
CausalLM:
  source = @TextFiles()
  tokenizer = @Bytes()
  length = 16
TextFiles.train = '{folder}/text.txt'
TextFiles.validation = '{folder}/text.txt'
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 10
  batch_size = 16
  accumulate = ACCUMULATE
  schedule = @Constant()
Constant.peak = 1e-3
'''.replace('ACCUMULATE', sys.argv[3]).replace('DISPATCH', sys.argv[4]))
meshes = Path(sys.argv[2]) / 'configs' / 'meshes'
name = 'body.stack.blocks.0.feed_forward.router.bias.bias'

def run_on(mesh):
  made = read_config([folder / 'run.gin', meshes / f'{mesh}.gin']).build()
  return TrainingRun(made, folder / f'run_{mesh}')

def trained(run, state, frozen, steps):
  batches, step = run.batches(run.rows('train')), run.program.train_step()
  for number in steps:
    state, out = step(state, frozen, run.on_device(batches[number]))
  return state, out.loss

run = run_on('single')
alone, loss = trained(run, *run.init(), range(6))
expected = np.asarray(alone.params[name])
assert len(np.unique(expected)) > 3

run = run_on('expert')
state, frozen = run.init()
assert len(state.params['embedding.table'].sharding.device_set) == 8
state, _ = trained(run, state, frozen, range(3))
run.save(3, state, {})
run.checkpoints.close()
whole, _ = trained(run, state, frozen, range(3, 6))
other = run_on('expert')
state, frozen, _ = other.restore()
state, resumed = trained(other, state, frozen, range(3, 6))
np.testing.assert_array_equal(np.asarray(state.params[name]), expected)
for key, value in whole.params.items():
  np.testing.assert_array_equal(np.asarray(state.params[key]), np.asarray(value))
np.testing.assert_allclose(resumed, loss, rtol=5e-6)
"""


@pytest.mark.slow
def test_biases_on_eight_devices_and_after_a_resume_equal_those_of_one_run_on_one_device(tmp_path):
  run_on_eight_devices(SCRIPT, tmp_path, ROOT, 1, 'Dropless', T2X_CACHE=str(tmp_path / 'cache'))


@pytest.mark.nightly
def test_biases_on_eight_devices_equal_those_of_one_device_with_accumulation(tmp_path):
  run_on_eight_devices(SCRIPT, tmp_path, ROOT, 2, 'Capacity', T2X_CACHE=str(tmp_path / 'cache'))
