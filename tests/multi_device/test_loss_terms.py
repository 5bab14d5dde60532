"""On eight fake devices (a separate process): the gradient of several loss terms is that of one device."""

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
from t2x.models import LMHead
from loss_terms import TASKS, assert_close, batch_of, gradient, model_of, transformer
from t2x.parallel import Activations, Mesh, batch_sharding, state_shardings
from t2x.train.params import Blueprint

two_terms = model_of(TASKS['with_token_modelling'])
for name, model, settings in (
  ('causal_lm', transformer(), Mesh(data=2, fsdp=2, tensor=2)),
  ('causal_lm', transformer(chunk=3), Mesh(data=2, context=2, tensor=2)),
  ('causal_lm', transformer(chunk=3, head=LMHead), Mesh(fsdp=2, context=2, tensor=2)),
  # 509 logits on two devices.
  ('causal_lm', transformer(3, LMHead, 509, 4), Mesh(data=4, tensor=2)),
  ('with_token_modelling', two_terms, Mesh(data=8)),
  ('with_token_modelling', two_terms, Mesh(data=2, fsdp=2, tensor=2)),
):
  batch = batch_of(TASKS[name], num_rows=16)
  one_device, metrics = gradient(TASKS[name], model, batch)
  mesh = settings.build()
  blueprint = Blueprint(jax.eval_shape(lambda: model))
  params = blueprint.params(model)
  shardings = state_shardings(mesh, settings.rules, blueprint.infos, params)
  placed = blueprint.model(jax.device_put(params, shardings))
  rows = jax.device_put(batch, batch_sharding(mesh))
  assert len(rows['tokens'].sharding.device_set) == 8
  for parts in (1, 2):
    grads, same = gradient(TASKS[name], placed, rows, parts, Activations.of(mesh, settings))
    # Sums in another order.
    assert_close(grads, one_device, 5e-6)
    assert_close(same, metrics, 5e-6)
print(jax.device_count(), 'devices')
"""


@pytest.mark.nightly
def test_gradients_of_several_terms_on_eight_devices_equal_those_on_one():
  # NPROC: XLA's threads; a collective of eight devices deadlocks on two.
  environment = os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'JAX_NUM_CPU_DEVICES': '8',
    'NPROC': '16',
  }
  command = [sys.executable, '-c', SCRIPT, str(ROOT / 'tests')]
  done = subprocess.run(
    command, env=environment, capture_output=True, text=True, check=False, timeout=300
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == '8 devices\n'
