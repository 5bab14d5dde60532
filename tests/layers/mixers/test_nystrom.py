"""NystromAttention: the formula of the paper, exact attention as a limit, padding, cost, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Dense,
  MultiHeadAttention,
  NystromAttention,
  Tokens,
)
from t2x.layers.mixers.nystrom import pseudo_inverse
from t2x.testing.subject import perturbed

WIDTH, HEADS, LENGTH = 12, 2, 11
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)

run = jax.jit(applied, static_argnames='pattern')


def build(num_landmarks=4, conv_size=3, **settings):
  return perturbed(
    NystromAttention(
      WIDTH,
      num_heads=HEADS,
      num_landmarks=num_landmarks,
      conv_size=conv_size,
      rngs=nnx.Rngs(0),
      **settings,
    )
  )


def softmax(scores):
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  return weights / weights.sum(axis=-1, keepdims=True)


def formula(mixer, x):
  """Equations 10 and 11 and the convolution in float64 for one row without padding, head by head."""

  x, total = np.asarray(x, np.float64), double(mixer.out.bias)
  segment = [place * 4 // len(x) for place in range(len(x))]
  for head in range(HEADS):
    q, k, v = (
      x @ double(linear.kernel)[:, head] + double(linear.bias)[head]
      for linear in (mixer.q, mixer.k, mixer.v)
    )
    q, k = (a / (WIDTH // HEADS) ** 0.25 for a in (q, k))
    q_means, k_means = (
      np.stack([a[np.equal(segment, i)].mean(axis=0) for i in range(4)]) for a in (q, k)
    )
    a = softmax(q_means @ k_means.T)
    z = a.T / np.abs(a).sum(axis=0).max() / np.abs(a).sum(axis=1).max()
    for _ in range(6):
      z = z @ (13 * np.eye(4) - a @ z @ (15 * np.eye(4) - a @ z @ (7 * np.eye(4) - a @ z))) / 4
    y = softmax(q @ k_means.T) @ z @ softmax(q_means @ k.T) @ v
    for tap, weight in enumerate(double(mixer.conv)[:, head]):
      for place in range(len(x)):
        if 0 <= place + tap - 1 < len(x):
          y[place] += weight * v[place + tap - 1]
    total = total + y @ double(mixer.out.kernel)[head]
  return total


@pytest.mark.parametrize('length', [8, LENGTH])
def test_equals_the_formula(length):
  mixer = build()
  y, _ = run(mixer, X[:, :length])
  np.testing.assert_allclose(y[1], formula(mixer, X[1, :length]), rtol=1e-4, atol=1e-4)


def test_padding_anywhere_is_not_read():
  mixer, is_token = build(conv_size=None), np.ones((1, LENGTH), int)
  is_token[0, [0, 7, 10]] = 0
  tokens = Tokens.row(LENGTH, segments=jnp.asarray(is_token))
  y, _ = run(mixer, X, tokens=tokens)
  places = np.flatnonzero(is_token[0])
  np.testing.assert_allclose(y[:, places], run(mixer, X[:, places])[0], rtol=1e-4, atol=1e-4)


def test_a_landmark_per_token_is_softmax_attention():
  """A padded row of fewer tokens than landmarks included: A A^+ A = A. The inverses are ill-conditioned."""
  mixer = build(num_landmarks=LENGTH, conv_size=None, num_iterations=40)
  exact = MultiHeadAttention(WIDTH, num_heads=HEADS, kernel=Dense(), rngs=nnx.Rngs(0))
  exact.q, exact.k, exact.v, exact.out = mixer.q, mixer.k, mixer.v, mixer.out
  segments = jnp.asarray(np.arange(LENGTH) < np.asarray([[LENGTH], [6]]), jnp.int32)
  tokens = Tokens.row(LENGTH, segments=segments)
  y, expected = (run(part, X, tokens=tokens)[0] for part in (mixer, exact))
  np.testing.assert_allclose(y[0], expected[0], atol=1e-2)
  np.testing.assert_allclose(y[1, :6], expected[1, :6], atol=1e-2)


def test_the_iteration_converges_to_the_pseudo_inverse():
  a = softmax(3 * np.random.default_rng(3).normal(size=(2, 5, 5)))
  a[1, 3:], a[1, :, 3:] = 0, 0
  z = pseudo_inverse(jnp.asarray(a, jnp.float32), 30)
  np.testing.assert_allclose(z, np.linalg.pinv(a), rtol=1e-3, atol=1e-3)


def test_time_and_memory_are_linear_in_the_length():
  """FLOPs and temporary memory of the compiled program, which does not run."""
  mixer = build(num_landmarks=8)

  def cost(length):
    @jax.grad
    def gradient(x):
      return (applied(mixer, x)[0] ** 2).sum()

    compiled = jax.jit(gradient).lower(jnp.zeros((1, length, WIDTH))).compile()
    memory = compiled.memory_analysis().temp_size_in_bytes
    return np.asarray([compiled.cost_analysis()['flops'], memory])

  assert (cost(4096) < 2.1 * cost(2048)).all()


def test_gradients_are_finite_for_rows_of_padding():
  mixer, segments = build(), jnp.asarray([[1] * 3 + [0] * 8, [0] * LENGTH])

  @jax.jit
  @jax.grad
  def gradient(mixer):
    return (applied(mixer, X, tokens=Tokens.row(LENGTH, segments=segments))[0] ** 2).sum()

  assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(mixer)))


def test_short_rows_and_even_convolutions_are_refused():
  with pytest.raises(UserError, match=r'3 tokens is shorter than .*num_landmarks = 4'):
    applied(build(), X[:, :3])
  with pytest.raises(UserError, match='conv_size = 4 must be odd'):
    build(conv_size=4)
