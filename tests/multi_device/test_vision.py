"""Vision models on eight devices follow one device (in another process)."""

import json

import pytest
from eight_devices import ROOT, run_on_eight_devices

SCRIPT = """
import json, sys
sys.path.append('experiments/speed')
from throughput import random_batch
from t2x.experiments import read_config
from t2x.train import Program

told = {}
for name in sys.argv[1:]:
  for mesh in ('single', 'fsdp_tensor'):
    files = [f'configs/runs/{name}_fashion_mnist.gin', f'configs/meshes/{mesh}.gin']
    settings = ['Trainer.batch_size=8', 'Trainer.optimizer=@AdamW()', 'Cosine.peak=0.001', 'Cosine.warmup_steps=1']
    program = Program(read_config(files, settings).build())
    (state, frozen), step, batch = program.init(0), program.train_step(), random_batch(program)
    losses = told.setdefault(name, {}).setdefault(mesh, [])
    for _ in range(4):
      state, out = step(state, frozen, batch)
      losses.append(float(out.loss))
print(json.dumps(told))
"""


@pytest.mark.nightly
@pytest.mark.timeout(1860)
def test_vision_models_on_eight_devices_follow_one(monkeypatch):
  names = ('swin', 'swin_v2', 'resnet', 'convnext', 'mixer', 'gmlp', 'dinov3')
  monkeypatch.chdir(ROOT)
  told = json.loads(run_on_eight_devices(SCRIPT, *names, seconds=1500).stdout)
  assert set(told) == set(names)
  for name, losses in told.items():
    assert losses['single'][-1] < losses['single'][0], name
    assert losses['fsdp_tensor'] == pytest.approx(losses['single'], rel=1e-5), name
