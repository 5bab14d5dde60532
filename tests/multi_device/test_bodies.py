"""On eight fake devices (a separate process): bodies that are no parts of tests/contracts have the outputs and
gradients of one device, with dropout and padding."""

import pytest
from eight_devices import run_on_eight_devices

SCRIPT = """
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from eight_devices import split
from loss_terms import assert_close
from t2x.base.step import in_step
from t2x.layers import MLP, FromSource, FunnelPositions, MultiHeadAttention, PreNorm, ResiDual, Tokens
from t2x.models import Block, Encoder, Funnel, Stack, SublayerBlock
from t2x.parallel import Mesh
from t2x.testing.subject import perturbed

part = functools.partial
WIDTH = 16
# The gradient of a key bias is 0 but for rounding.
mixer = part(MultiHeadAttention, num_heads=4, dropout_rate=0.1, use_bias=False)
feed_forward = part(MLP, hidden_dim=32)


def stack(wiring, num_layers=2, blocks=None):
  own = part(Block, mixer=mixer, feed_forward=feed_forward, wiring=part(wiring, dropout_rate=0.2))
  return part(Stack, num_layers=num_layers, blocks=[own] if blocks is None else blocks)


pooling = {'mixer': part(FromSource, sublayer=mixer), 'feed_forward': feed_forward}
funnel = part(
  Funnel,
  stages=[stack(PreNorm), stack(PreNorm, 1)],
  pooling=stack(PreNorm, 1, [part(SublayerBlock, sublayers=pooling)]),
  pair_encoding=part(FunnelPositions, num_heads=4, separate_first=False, second='second'),
  decoder=stack(PreNorm, 1),
  # Lengths of the stages, 8 and 4, are split over two devices.
  separate_first=False,
  truncate=False,
)
x = jax.random.normal(jax.random.key(1), (16, 8, WIDTH))
positions = jnp.broadcast_to(jnp.arange(8), (16, 8))
padding = positions < 1 + jnp.arange(16)[:, None] % 8
marks = {'second': positions >= 3}
tokens = Tokens.row(8, segments=padding.astype(jnp.int32), marks=marks, right_padded=True)


def outcome(body, x, layout=None):
  def loss(body, x):
    with in_step(layout=layout):
      output = body(x, tokens=tokens, key=jax.random.key(2))
    y = jnp.where(padding[..., None], output.x, 0.0)
    return jnp.sin(y).sum(), y

  (_, y), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(body, x)
  return jax.tree.leaves((y, gradients))


for layers in (stack(ResiDual, 3), funnel):
  body = perturbed(Encoder(WIDTH, stack=layers, rngs=nnx.Rngs(0)), scale=0.1)
  one_device = outcome(body, x)
  for mesh in (Mesh(data=2, fsdp=2, tensor=2), Mesh(fsdp=2, context=2, tensor=2)):
    assert_close(outcome(*split(body, x, mesh)), one_device, 1e-5)
"""


@pytest.mark.nightly
def test_outputs_and_gradients_on_eight_devices_equal_those_on_one():
  run_on_eight_devices(SCRIPT)
