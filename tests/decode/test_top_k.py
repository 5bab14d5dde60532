"""The largest elements of long rows against `jax.lax.top_k`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.decode.top_k import top_k


@pytest.mark.parametrize('size', [5, 255, 256, 3001])
@pytest.mark.parametrize('k', [1, 4])
@pytest.mark.parametrize('values', [3, 10**6])
def test_values_and_indices_equal_those_of_jax_with_ties_and_infinities(size, k, values):
  rng = np.random.default_rng(size)
  x = rng.integers(0, values, (4, 3, size)).astype(np.float32)
  x[1] = np.where(rng.random((3, size)) < 0.999, -np.inf, x[1])
  x[2] = -np.inf
  found, expected = top_k(jnp.asarray(x), k), jax.lax.top_k(jnp.asarray(x), k)
  jax.tree.map(np.testing.assert_array_equal, found, tuple(expected))
