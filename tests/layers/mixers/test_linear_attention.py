"""Linear attention: chunks and states against the sum over all pairs of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double, empty, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Causal,
  Full,
  LinearAttention,
  Tokens,
)

WIDTH, HEADS, LENGTH = 12, 2, 11
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 3, 0, 0, 0], [0, 1, 1, 0, 1, 2, 2, 2, 0, 2, 0]])
TOKENS = {
  'plain': Tokens.row(LENGTH),
  'packed': Tokens(jnp.arange(LENGTH)[None], SEGMENTS),
}

run = jax.jit(applied, static_argnames='pattern')


def build(**settings):
  return moved(LinearAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0), **settings))


def quadratic(mixer, x, segments, is_causal):
  """The definition, over all pairs of tokens, in float64; padding gets zeros before the projection."""

  def project(linear):
    return np.einsum('bnm,mhd->bnhd', x, double(linear.kernel)) + double(linear.bias)

  def phi(a):
    return np.where(a > 0, a + 1, np.exp(np.minimum(a, 0)))

  x = np.asarray(x, np.float64)
  q, k, v = phi(project(mixer.q)), phi(project(mixer.k)), project(mixer.v)
  seen = (segments[:, :, None] == segments[:, None]) & (segments != 0)[:, None]
  if is_causal:
    seen = np.tril(seen)
  weights = np.einsum('bihd,bjhd->bhij', q, k) * seen[:, None]
  total = weights.sum(axis=-1, keepdims=True)
  weights = np.divide(weights, total, where=total > 0, out=np.zeros_like(weights))
  y = np.einsum('bhij,bjhd->bihd', weights, v)
  return np.einsum('bihd,hdm->bim', y, double(mixer.out.kernel)) + double(mixer.out.bias)


@pytest.mark.parametrize('chunk', [1, 4, 64])
@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_chunks_equal_the_sum_over_all_pairs(pattern, tokens, chunk):
  mixer, tokens = build(chunk=chunk), TOKENS[tokens]
  y, _ = run(mixer, X, pattern=pattern, tokens=tokens)
  segments = np.ones((2, LENGTH), int) if tokens.segments is None else np.asarray(tokens.segments)
  expected = quadratic(mixer, X, segments, pattern == Causal())
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_gradients_do_not_depend_on_the_chunk(pattern):
  def loss(mixer, x):
    return (applied(mixer, x, pattern=pattern, tokens=TOKENS['packed'])[0] ** 2).sum()

  one, many = (jax.jit(jax.grad(loss, (0, 1)))(build(chunk=chunk), X) for chunk in (64, 3))
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
    assert jnp.isfinite(a).all()
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_features_that_underflow_have_finite_gradients():
  mixer = build()

  def loss(x):
    return (applied(mixer, x, pattern=Causal())[0] ** 2).sum()

  assert jnp.isfinite(jax.jit(jax.grad(loss))(1000 * X)).all()


def test_a_bidirectional_call_with_a_state_sees_the_earlier_calls():
  mixer = build(chunk=3)
  state = empty(mixer, 2, LENGTH)
  _, state = run(mixer, X[:, :4], pattern=Full(), state=state)
  y, _ = run(mixer, X[:, 4:], pattern=Full(), state=state)
  whole, _ = run(mixer, X, pattern=Full())
  np.testing.assert_allclose(y, whole[:, 4:], atol=1e-5)


def test_beams_copy_and_exchange_the_state_of_their_row():
  mixer = build()
  _, state = run(mixer, X, pattern=Causal(), state=empty(mixer, 2, LENGTH))
  beams = state.cache.repeat(2)
  np.testing.assert_array_equal(beams.sums[1], state.cache.sums[0])
  taken = beams.take(jnp.asarray([0, 0, 3, 2]))
  np.testing.assert_array_equal(taken.sums[2], state.cache.sums[1])
  assert taken.segment.tolist() == [1, 1, 1, 1]


def test_patterns_that_equal_causal_are_followed():
  mixer = build()
  y, _ = run(mixer, X, pattern=Causal() & Causal())
  np.testing.assert_array_equal(y, run(mixer, X, pattern=Causal())[0])


def test_heads_that_do_not_divide_the_width_are_refused():
  with pytest.raises(
    UserError, match=r'LinearAttention.num_heads = 5 does not divide d_model = 12'
  ):
    LinearAttention(WIDTH, num_heads=5, rngs=nnx.Rngs(0))
