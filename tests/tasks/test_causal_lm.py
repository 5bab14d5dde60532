"""What a causal language model reads."""

import jax.numpy as jnp
import numpy as np

from t2x.tasks.causal_lm import shift_right


def test_each_segment_starts_from_bos():
  tokens = jnp.array([[5, 6, 1, 7, 8, 0]])
  segments = jnp.array([[1, 1, 1, 2, 2, 0]])
  np.testing.assert_array_equal(shift_right(tokens, segments, 3), [[3, 5, 6, 3, 7, 3]])
