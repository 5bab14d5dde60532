"""On eight fake devices (a separate process): the gradient of a reversible stack, with dropout, a shared bias and
experts, is that of one device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import functools
import sys

import jax
import jax.numpy as jnp
from flax import nnx

sys.path.append(sys.argv[1])
from loss_terms import assert_close
from t2x.layers import MLP, MultiHeadAttention, PreNorm, SwitchFeedForward, T5Bias, Tokens
from t2x.layers.constraints import use_layout
from t2x.models import Block, Decoder, ReversibleStack
from t2x.parallel import Activations, Mesh, batch_sharding, state_shardings
from t2x.train.params import Blueprint

part = functools.partial
WIDTH = 16
block = part(
  Block,
  # The gradient of a key bias is 0 but for rounding.
  mixer=part(MultiHeadAttention, num_heads=4, dropout_rate=0.1, use_bias=False),
  feed_forward=part(MLP, hidden_dim=32),
  wiring=part(PreNorm, dropout_rate=0.2),
)
experts = part(SwitchFeedForward, hidden_dim=16, num_experts=2, capacity_factor=4.0)
body = Decoder(
  WIDTH,
  stack=part(ReversibleStack, num_layers=4, blocks=[block, part(block, feed_forward=experts)]),
  encoding=part(T5Bias, num_heads=4, bidirectional=False),
  rngs=nnx.Rngs(0),
)
x = jax.random.normal(jax.random.key(1), (16, 8, WIDTH))
positions = jnp.broadcast_to(jnp.arange(8), (16, 8))
tokens = Tokens(positions, jnp.where(positions < 1 + jnp.arange(16)[:, None] % 8, 1, 0))


def gradient(body, x, layout=None):
  def loss(body, x):
    with use_layout(layout):
      output = body(x, tokens=tokens, key=jax.random.key(2))
    y = jnp.where(tokens.segments[..., None] > 0, output.x, 0.0)
    return jnp.sin(y).sum() + sum(one.sum() for one in output.aux.losses.values())

  return jax.jit(jax.grad(loss, (0, 1)))(body, x)


one_device = jax.tree.leaves(gradient(body, x))
blueprint = Blueprint(jax.eval_shape(lambda: body))
params = blueprint.params(body)
for settings in (Mesh(data=2, fsdp=2, tensor=2), Mesh(fsdp=2, context=2, tensor=2)):
  mesh = settings.build()
  shardings = state_shardings(mesh, settings.rules, blueprint.infos, params)
  placed = blueprint.model(jax.device_put(params, shardings))
  rows = jax.device_put(x, batch_sharding(mesh))
  assert len(rows.sharding.device_set) == 8
  grads = jax.tree.leaves(gradient(placed, rows, Activations.of(mesh, settings)))
  assert_close(grads, one_device, 1e-5)
print(jax.device_count(), 'devices')
"""


@pytest.mark.nightly
def test_gradients_on_eight_devices_equal_those_on_one():
  # NPROC: XLA's threads; a collective of eight devices deadlocks on two.
  environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '8', 'NPROC': '16'}
  command = [sys.executable, '-c', SCRIPT, str(ROOT / 'tests')]
  done = subprocess.run(
    command, env=environment, capture_output=True, text=True, check=False, timeout=300
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == '8 devices\n'
