"""Kernels of grouped products, in Pallas' interpreter, against `jax.lax.ragged_dot`; their use on NVIDIA GPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import Call, Dropless, GatedMLP, MixtureOfExperts, Tokens
from t2x.layers.grouped_kernels import block_products, block_sums

BLOCK, INPUTS, OUTPUTS = 16, 64, 96
# Blocks of each part, one of which has none; the last two blocks are not in use.
BLOCKS = [3, 0, 1, 4]
UNUSED = 2
SIZES = jnp.array(BLOCKS) * BLOCK
PART = jnp.array(np.repeat(range(len(BLOCKS) + 1), [*BLOCKS, UNUSED]))


@pytest.fixture(scope='module')
def arrays():
  keys = jax.random.split(jax.random.key(0), 3)
  rows = BLOCK * (sum(BLOCKS) + UNUSED)
  x = jax.random.normal(keys[0], (rows, INPUTS))
  gradient = jax.random.normal(keys[1], (rows, OUTPUTS))
  return x, gradient, jax.random.normal(keys[2], (len(BLOCKS), INPUTS, OUTPUTS))


def assert_equal(actual, expected):
  scale = np.abs(np.asarray(expected)).max()
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * scale)


def test_products_equal_ragged_dot_and_unused_rows_give_zeros(arrays):
  x, _, matrices = arrays
  y = block_products(x, matrices, PART, interpret=True)
  assert_equal(y, jax.lax.ragged_dot(x, matrices, SIZES))
  assert not y[-UNUSED * BLOCK :].any()


def test_transposed_products_equal_ragged_dot(arrays):
  _, gradient, matrices = arrays
  y = block_products(gradient, matrices, PART, transposed=True, interpret=True)
  assert_equal(y, jax.lax.ragged_dot(gradient, matrices.swapaxes(1, 2), SIZES))


def test_sums_equal_the_gradient_of_ragged_dot(arrays):
  x, gradient, matrices = arrays
  sums = block_sums(x, gradient, jnp.cumsum(jnp.array(BLOCKS)), BLOCK, interpret=True)
  _, backward = jax.vjp(lambda matrices: jax.lax.ragged_dot(x, matrices, SIZES), matrices)
  assert_equal(sums, backward(gradient)[0])


@pytest.mark.parametrize(
  ('hidden', 'dtype', 'kernels'), [(96, 'bfloat16', 9), (96, 'float32', 0), (40, 'bfloat16', 0)]
)
def test_for_an_nvidia_gpu_the_experts_are_lowered_to_kernels(monkeypatch, hidden, dtype, kernels):
  """Three matrices, each with one product forward and two backward; `ragged_dot` for widths that no tile divides."""
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  experts = functools.partial(GatedMLP, hidden_dim=hidden)
  part = MixtureOfExperts(64, num_experts=4, expert=experts, dispatch=Dropless(), rngs=nnx.Rngs(0))
  part = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, dtype), part)
  x = jax.ShapeDtypeStruct((2, 256, 64), dtype)

  def loss(part, x):
    return part(x, Call(Tokens.row(256))).x.astype(jnp.float32).sum()

  program = jax.jit(jax.grad(loss, (0, 1))).trace(part, x).lower(lowering_platforms=('cuda',))
  assert program.as_text().count('__gpu$xla.gpu.triton') == kernels
