"""Slower frequencies of RoPE."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.layers import LinearScaling, Llama3Scaling, RoPE, Tokens


def test_llama3_keeps_what_turns_often_and_slows_what_does_not():
  scaling = Llama3Scaling(factor=8.0, max_length=100, low_frequency=1.0, high_frequency=4.0)
  turns = np.array([50.0, 4.0, 2.5, 1.0, 0.01], np.float32)
  frequencies = (turns * 2 * np.pi / 100).astype(np.float32)
  kept = scaling(frequencies) / frequencies
  # Half way between slow and fast: the mean of 1 and 1 / 8.
  np.testing.assert_allclose(kept, [1.0, 1.0, 0.5625, 0.125, 0.125], rtol=1e-5)


def test_linear_scaling_interpolates_positions():
  x = jax.random.normal(jax.random.key(0), (1, 3, 1, 8))
  far, near = jnp.array([[0, 4, 12]]), jnp.array([[0, 1, 3]])
  scaled = RoPE(8, scaling=LinearScaling(4.0), rngs=nnx.Rngs(0)).rotate(
    x, x, Tokens(far), Tokens(far)
  )[0]
  plain = RoPE(8, rngs=nnx.Rngs(0)).rotate(x, x, Tokens(near), Tokens(near))[0]
  np.testing.assert_allclose(scaled, plain, atol=1e-6)
