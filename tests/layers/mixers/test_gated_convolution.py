"""Gated convolutions over all features. tests/parity compares them with fairseq, contracts are in tests/contracts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Causal,
  Full,
  GatedConvolution,
  SourceSequence,
  Tokens,
  WeightNormLinear,
  Window,
)

WIDTH, LENGTH = 4, 9
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
SEGMENTS = np.asarray([[1] * 6 + [2] * 3, [1] * 7 + [0] * 2])
POSITIONS = np.asarray([[*range(6), *range(3)], [*range(7), 0, 0]])


def oracle(mixer, dilation, allows, before):
  """Loops over rows, tokens and taps; `allows(i, j)`: does position i see position j?"""
  kernel, x = double(mixer.gates.kernel), np.asarray(X, np.float64)
  y = np.zeros((2, LENGTH, 2, WIDTH)) + double(mixer.gates.bias)
  for row, i, tap in np.ndindex(2, LENGTH, len(kernel)):
    j = i + dilation * (tap - before)
    if not 0 <= j < LENGTH or not SEGMENTS[row, i] == SEGMENTS[row, j] != 0:
      continue
    if allows(POSITIONS[row, i], POSITIONS[row, j]):
      y[row, i] += np.einsum('d,dgm->gm', x[row, j], kernel[tap])
  return y[:, :, 0] / (1 + np.exp(-y[:, :, 1]))


PATTERNS = {
  'full': (Full(), lambda i, j: True, {3: 1, 4: 2}),
  'causal': (Causal(), lambda i, j: j <= i, {3: 2, 4: 3}),
  'window': (Causal() & Window(3), lambda i, j: i - 2 <= j <= i, {3: 2, 4: 3}),
}


@pytest.mark.parametrize('dilation', [1, 2])
@pytest.mark.parametrize('taps', [3, 4])
@pytest.mark.parametrize('name', PATTERNS)
def test_a_gated_convolution_is_its_formula(name, taps, dilation):
  pattern, allows, before = PATTERNS[name]
  mixer = moved(GatedConvolution(WIDTH, kernel_size=taps, dilation=dilation, rngs=nnx.Rngs(0)))
  tokens = Tokens(jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS))
  y, cache = jax.jit(lambda m, x: applied(m, x, pattern=pattern, tokens=tokens))(mixer, X)
  np.testing.assert_allclose(y, oracle(mixer, dilation, allows, before[taps]), atol=1e-5)
  assert cache is None


def test_dilated_layers_reach_exponentially_many_tokens():
  layers = [GatedConvolution(WIDTH, kernel_size=2, dilation=d, rngs=nnx.Rngs(0)) for d in (1, 2, 4)]

  def last(x):
    return functools.reduce(lambda x, part: applied(part, x, pattern=Causal())[0], layers, x)[0, -1]

  reached = jnp.abs(jax.jacobian(last)(X)[:, 0]).max(axis=(0, 2)) > 0
  np.testing.assert_array_equal(reached, [False] + [True] * 8)


def test_its_weights_are_normalised_by_the_linear_function_that_it_is_given():
  mixer = GatedConvolution(WIDTH, linear=WeightNormLinear, rngs=nnx.Rngs(0))
  before = applied(mixer, X)[0]
  mixer.gates.kernel[...] = 3.0 * mixer.gates.kernel[...]
  np.testing.assert_allclose(applied(mixer, X)[0], before, atol=1e-5)


def test_a_source_is_refused():
  with pytest.raises(UserError, match='GatedConvolution attends to its own tokens and received'):
    applied(
      GatedConvolution(WIDTH, rngs=nnx.Rngs(0)), X, source=SourceSequence(X, Tokens.row(LENGTH))
    )
