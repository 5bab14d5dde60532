"""On eight fake devices (a separate process): what is drawn for a row is that of one device, with micro-batches too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import jax

sys.path.append(sys.argv[1])
from loss_terms import assert_close, gradient
from random_rows import EXPERIMENTS, batch_of_rows
from t2x.parallel import Activations, Mesh, batch_sharding, state_shardings
from t2x.train.params import Blueprint

for name, settings, parts in (
  ('images with MixUp', Mesh(data=8), 1),
  ('images with MixUp', Mesh(data=2, fsdp=2, tensor=2), 2),
  ('a reversible stack', Mesh(data=2, fsdp=2, context=2), 2),
):
  task, model = EXPERIMENTS[name]()
  batch = batch_of_rows(task)
  one_device, metrics = gradient(task, model, batch)
  mesh = settings.build()
  blueprint = Blueprint(jax.eval_shape(lambda: model))
  params = blueprint.params(model)
  shardings = state_shardings(mesh, settings.rules, blueprint.infos, params)
  placed = blueprint.model(jax.device_put(params, shardings))
  rows = jax.device_put(batch, batch_sharding(mesh))
  grads, same = gradient(task, placed, rows, parts, Activations.of(mesh, settings))
  # Sums in another order.
  assert_close(grads, one_device, 5e-6)
  assert_close(same, metrics, 5e-6)
print(jax.device_count(), 'devices')
"""


@pytest.mark.slow
def test_eight_devices_draw_the_numbers_of_one():
  # NPROC: XLA's threads; a collective of eight devices deadlocks on two.
  environment = os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'JAX_NUM_CPU_DEVICES': '8',
    'NPROC': '16',
  }
  command = [sys.executable, '-c', SCRIPT, str(ROOT / 'tests')]
  done = subprocess.run(
    command, env=environment, capture_output=True, text=True, check=False, timeout=600
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == '8 devices\n'
