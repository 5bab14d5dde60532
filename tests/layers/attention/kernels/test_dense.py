import jax
import jax.numpy as jnp
import numpy as np

from t2x.layers.attention.kernels.dense import softmax

SCORES = jax.random.normal(jax.random.key(0), (2, 3, 5)).at[0, 1].set(jnp.finfo(jnp.float32).min)


def test_the_gradient_of_the_softmax_matches_jax():
  gradient = jax.random.normal(jax.random.key(1), SCORES.shape)
  for function in (softmax, jax.nn.softmax):
    y, pullback = jax.vjp(function, SCORES)
    jacobian = np.einsum('...i,ij->...ij', y, np.eye(5)) - np.einsum('...i,...j->...ij', y, y)
    expected = np.einsum('...ij,...j->...i', jacobian.astype(np.float64), gradient)
    np.testing.assert_allclose(pullback(gradient)[0], expected, atol=2e-7)


def test_the_gradient_of_the_softmax_reads_the_probabilities_only():
  _, pullback = jax.vjp(softmax, SCORES)
  assert [leaf.shape for leaf in jax.tree.leaves(pullback)] == [SCORES.shape]
