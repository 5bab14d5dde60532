"""CoPE against loops over pairs in NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import CoPE, Tokens, normal


@pytest.mark.parametrize('scale', [1.0, 0.3])
def test_scores_interpolate_vectors_at_sums_of_scaled_gates(scale):
  length, heads, size, num = 6, 2, 4, 4
  encoding = CoPE(8, head_dim=size, max_positions=num, init=normal(1.0), rngs=nnx.Rngs(0))
  q, k = (jax.random.normal(jax.random.key(i), (1, length, heads, size)) for i in range(2))
  visible = np.tril(np.ones((length, length), bool))
  tokens = Tokens.row(length)
  scores = encoding.scores(
    q, k, tokens, tokens, scale=scale, visible=jnp.asarray(visible)[None, None]
  )
  table = np.asarray(encoding.table[...], np.float64)
  q, k = (np.asarray(a[0], np.float64) for a in (q, k))
  for h in range(heads):
    for i in range(length):
      for j in range(i + 1):
        gates = 1 / (1 + np.exp(-scale * k[j : i + 1, h] @ q[i, h]))
        position = min(gates.sum(), num - 1)
        columns = [np.interp(position, np.arange(num), column) for column in table.T]
        np.testing.assert_allclose(scores[0, h, i, j], q[i, h] @ np.array(columns), atol=2e-5)
