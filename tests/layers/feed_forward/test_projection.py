"""A linear map as a sublayer, and a factor of gradients."""

import jax
import numpy as np
from flax import nnx

from t2x.layers import Call, Projection, ScaledGradient, Tokens, WeightNormLinear

X, CALL = jax.random.normal(jax.random.key(0), (2, 3, 4)), Call(Tokens.row(3))


def test_a_projection_is_linear_with_the_map_that_it_is_given():
  part = Projection(4, linear=WeightNormLinear, rngs=nnx.Rngs(0))
  part.out.gain[...] = 2.0 * part.out.gain[...]
  part.out.bias[...] = part.out.bias[...] + 1.0
  expected = np.einsum('bld,de->ble', X, 2.0 * part.out.kernel[...]) + 1.0
  np.testing.assert_allclose(part(X, CALL).x, expected, atol=1e-5)
  assert Projection(4, use_bias=False, rngs=nnx.Rngs(0)).out.bias is None


def test_a_scaled_gradient_leaves_the_values_as_they_are():
  part = ScaledGradient(4, factor=0.25, rngs=nnx.Rngs(0))
  np.testing.assert_array_equal(part(X, CALL).x, X)
  gradient = jax.grad(lambda x: (part(x, CALL).x ** 2).sum())(X)
  np.testing.assert_allclose(gradient, 0.5 * X, atol=1e-6)
