"""On eight fake devices (a separate process): the gradient of a reversible stack, with dropout, a shared bias and
experts, is that of one device."""

import pytest
from eight_devices import run_on_eight_devices

SCRIPT = """
import functools
import sys

import jax
import jax.numpy as jnp
from flax import nnx

from eight_devices import split
from loss_terms import assert_close
from t2x.base.step import in_step
from t2x.layers import MLP, MultiHeadAttention, PreNorm, SwitchFeedForward, T5Bias, Tokens
from t2x.models import Block, Decoder, ReversibleStack
from t2x.parallel import Mesh

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
    with in_step(layout=layout):
      output = body(x, tokens=tokens, key=jax.random.key(2))
    y = jnp.where(tokens.segments[..., None] > 0, output.x, 0.0)
    return jnp.sin(y).sum() + sum(one.sum() for one in output.aux.losses.values())

  return jax.jit(jax.grad(loss, (0, 1)))(body, x)


one_device = jax.tree.leaves(gradient(body, x))
for mesh in (Mesh(data=2, fsdp=2, tensor=2), Mesh(fsdp=2, context=2, tensor=2)):
  assert_close(jax.tree.leaves(gradient(*split(body, x, mesh))), one_device, 1e-5)
"""


@pytest.mark.nightly
def test_gradients_on_eight_devices_equal_those_on_one():
  run_on_eight_devices(SCRIPT)
