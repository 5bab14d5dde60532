"""Linformer: the formula of the paper, padding, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Linformer, Tokens

WIDTH, HEADS, LENGTH, MAX_LENGTH = 12, 2, 7, 9
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)

run = jax.jit(applied, static_argnames='pattern')


def build(**settings):
  mixer = Linformer(
    WIDTH,
    num_heads=HEADS,
    max_length=MAX_LENGTH,
    projected_length=4,
    rngs=nnx.Rngs(0),
    **settings,
  )
  return moved(mixer)


def formula(mixer, x):
  """softmax(q (E'k)' / sqrt(d)) F'v in float64 for rows without padding, head by head."""

  def project(linear, head):
    return x @ double(linear.kernel)[:, head] + double(linear.bias)[head]

  x = np.asarray(x, np.float64)
  e, f = (double(table)[: x.shape[1]] for table in (mixer.k_length, mixer.v_length))
  total = double(mixer.out.bias)
  for head in range(HEADS):
    q, k, v = (project(linear, head) for linear in (mixer.q, mixer.k, mixer.v))
    scores = q @ (e.T @ k).swapaxes(1, 2) / np.sqrt(WIDTH // HEADS)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    total = total + weights @ (f.T @ v) @ double(mixer.out.kernel)[head]
  return total


@pytest.mark.parametrize('length', [3, LENGTH])
def test_equals_the_formula(length):
  mixer = build()
  y, _ = run(mixer, X[:, :length])
  np.testing.assert_allclose(y, formula(mixer, X[:, :length]), rtol=1e-5, atol=1e-5)


def test_padding_is_not_read():
  mixer, segments = build(), (jnp.arange(LENGTH) < 5).astype(int)[None]
  y, _ = run(mixer, X, tokens=Tokens.row(LENGTH, segments=segments))
  np.testing.assert_allclose(y[:, :5], formula(mixer, X[:, :5]), rtol=1e-5, atol=1e-5)


def test_gradients_are_finite_and_reach_only_the_rows_that_are_read():
  mixer, segments = build(), jnp.asarray([[1, 1, 1, 1, 1, 0, 0], [0] * LENGTH])

  @jax.jit
  @jax.grad
  def gradient(mixer):
    return (applied(mixer, X, tokens=Tokens.row(LENGTH, segments=segments))[0] ** 2).sum()

  gradients = gradient(mixer)
  for leaf in jax.tree.leaves(gradients):
    assert jnp.isfinite(leaf).all()
  for table in (gradients.k_length[...], gradients.v_length[...]):
    assert (table[:5] != 0).all() and (table[5:] == 0).all()


def test_longer_rows_are_refused():
  with pytest.raises(UserError, match=r'10 tokens is longer than Linformer.max_length = 9'):
    applied(build(), jnp.zeros((1, 10, WIDTH)))
