"""Feature maps of linear attention: random features against the sum over all pairs and against softmax attention."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double, empty, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Call, Causal, FavorPlus, Full, LinearAttention, ReluFeatures, Tokens
from t2x.layers.mixers.feature_maps import drawn_directions, orthogonal_normal

WIDTH, HEADS, LENGTH, FEATURES = 12, 2, 11, 20
DIM = WIDTH // HEADS
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
# All products of features of the second row underflow in float32: their logarithms are below -190.
LARGE = X.at[1].multiply(20.0)
SEED = 36  # The products of features of LARGE are above the smallest float32.
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 3, 0, 0, 0], [0, 1, 1, 0, 1, 2, 2, 2, 0, 2, 0]])
TOKENS = {
  'plain': Tokens.row(LENGTH),
  'packed': Tokens(jnp.arange(LENGTH)[None], SEGMENTS),
}
PATTERNS = [Causal(), Full()]

run = jax.jit(applied, static_argnames='pattern')


def build(features=FavorPlus, num_features=FEATURES, chunk=4, seed=SEED, **settings):
  """A mixer with queries and keys of about unit variance."""
  features = functools.partial(features, num_features=num_features, seed=seed, **settings)
  mixer = LinearAttention(WIDTH, num_heads=HEADS, features=features, chunk=chunk, rngs=nnx.Rngs(0))
  return moved(mixer, scale=0.1)


def seen(tokens, pattern):
  """Which keys each query sees, [2, queries, keys]."""
  segments = np.ones((2, LENGTH), int) if tokens.segments is None else np.asarray(tokens.segments)
  pairs = (segments[:, :, None] == segments[:, None]) & (segments != 0)[:, None]
  return np.tril(pairs) if pattern == Causal() else pairs


def log_weights(q, k, omega=None):
  """log(phi(q) phi(k)') of FAVOR+ for all pairs, from the formula of the paper."""
  omega = orthogonal_normal(FEATURES, DIM, SEED) if omega is None else omega

  def log_phi(x):
    x = x / DIM**0.25
    squares = (x**2).sum(axis=-1, keepdims=True)
    return np.einsum('bnhd,fd->bnhf', x, omega) - squares / 2 - np.log(FEATURES) / 2

  return np.logaddexp.reduce(log_phi(q)[:, :, None] + log_phi(k)[:, None], axis=-1)


def over_pairs(mixer, x, pairs, log_weights):
  """Attention with these weights over all pairs of tokens, in float64; zeros for queries that see nothing."""

  def project(linear):
    return np.einsum('bnm,mhd->bnhd', x, double(linear.kernel)) + double(linear.bias)

  x = np.asarray(x, np.float64)
  logs = np.where(pairs[..., None], log_weights(project(mixer.q), project(mixer.k)), -np.inf)
  top = logs.max(axis=2, keepdims=True)
  weights = np.exp(logs - np.where(np.isfinite(top), top, 0))
  total = weights.sum(axis=2, keepdims=True)
  weights = np.divide(weights, total, where=total > 0, out=np.zeros_like(weights))
  y = np.einsum('bijh,bjhd->bihd', weights, project(mixer.v))
  return np.einsum('bihd,hdm->bim', y, double(mixer.out.kernel)) + double(mixer.out.bias)


@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize('pattern', PATTERNS, ids=str)
def test_random_features_equal_the_sum_over_all_pairs(pattern, tokens):
  mixer, tokens = build(), TOKENS[tokens]
  y, _ = run(mixer, LARGE, pattern=pattern, tokens=tokens)
  expected = over_pairs(mixer, LARGE, seen(tokens, pattern), log_weights)
  np.testing.assert_allclose(y[0], expected[0], rtol=1e-5, atol=1e-5)
  # Logarithms of features of about 500 are rounded to 3e-5.
  np.testing.assert_allclose(y[1], expected[1], rtol=1e-3, atol=1e-3 * np.abs(expected[1]).max())


def test_the_size_of_later_keys_and_of_other_segments_changes_no_output():
  mixer = build(chunk=64)
  for pattern, tokens, place, same in (
    (Causal(), TOKENS['plain'], 7, slice(0, 7)),
    (Full(), TOKENS['packed'], 7, slice(0, 7)),
  ):
    one, other = (
      run(mixer, x, pattern=pattern, tokens=tokens)[0][0, same]
      for x in (X, X.at[0, place].multiply(100.0))
    )
    np.testing.assert_array_equal(one, other)


def test_decoding_rescales_the_state_to_larger_keys():
  mixer = build()
  x = X * jnp.linspace(0.1, 20.0, LENGTH)[None, :, None]
  whole, _ = run(mixer, x, pattern=Causal())
  state, outputs = empty(mixer, 2, LENGTH), []
  assert state.cache.sums.shape == (2, HEADS, FEATURES, DIM + 1)
  for i in range(LENGTH):
    y, state = run(mixer, x[:, i : i + 1], pattern=Causal(), state=state)
    outputs.append(y)
  scale = jnp.abs(whole).max()
  np.testing.assert_allclose(jnp.concatenate(outputs, 1) / scale, whole / scale, atol=1e-4)


@pytest.mark.parametrize('pattern', PATTERNS, ids=str)
def test_gradients_match_the_formula(pattern):
  mixer, tokens = build(), TOKENS['packed']
  pairs = jnp.asarray(seen(tokens, pattern))

  def formula(mixer, x):
    q, k, v = mixer.project(x)
    phi_q, phi_k = (
      jnp.exp(mixer.features.project(a) - (a**2).sum(axis=-1, keepdims=True) / 2)
      for a in map(mixer.features.scaled, (q, k))
    )
    weights = jnp.einsum('bihf,bjhf->bhij', phi_q, phi_k) * pairs[:, None]
    total = weights.sum(axis=-1, keepdims=True)
    y = jnp.einsum('bhij,bjhd->bihd', weights / jnp.where(total == 0, 1, total), v)
    return mixer.output(y)

  def gradients(function):
    return jax.jit(jax.grad(lambda mixer, x: (function(mixer, x) ** 2).sum(), (0, 1)))(mixer, X)

  actual = gradients(lambda mixer, x: applied(mixer, x, pattern=pattern, tokens=tokens)[0])
  for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(gradients(formula)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('pattern', PATTERNS, ids=str)
def test_tokens_whose_features_underflow_have_nan_and_padding_does_not(pattern):
  mixer, tokens = build(seed=3), TOKENS['packed']
  y, _ = run(mixer, LARGE, pattern=pattern, tokens=tokens)
  omega = orthogonal_normal(FEATURES, DIM, 3)
  weights = functools.partial(log_weights, omega=omega)
  expected = over_pairs(mixer, LARGE, seen(tokens, pattern), weights)
  lost = np.isnan(y).any(axis=-1)
  assert lost[1].any() and not lost[0].any() and not lost[SEGMENTS == 0].any()
  scale = np.abs(expected).max(axis=(1, 2), keepdims=True)
  np.testing.assert_allclose((y / scale)[~lost], (expected / scale)[~lost], atol=1e-3)


def test_the_error_against_softmax_attention_falls_as_the_root_of_the_number_of_features():
  def softmax_weights(q, k):
    return np.einsum('bihd,bjhd->bijh', q, k) / np.sqrt(DIM)

  x, pairs = X / 2, seen(TOKENS['plain'], Full())
  expected = over_pairs(build(), x, pairs, softmax_weights)

  def error(num_features):
    mixers = (build(num_features=num_features, seed=seed) for seed in range(8))
    outputs = np.stack([applied(mixer, x)[0] for mixer in mixers])
    return np.sqrt(np.mean((outputs - expected) ** 2))

  # Sixteen times the features: a quarter of the error.
  assert 2.5 < error(256) / error(4096) < 6 and error(4096) < 0.01


def test_directions_are_normal_and_orthogonal_in_blocks():
  omega = orthogonal_normal(2 * DIM + 2, DIM, 0)
  for rows in (slice(0, DIM), slice(DIM, 2 * DIM), slice(2 * DIM, None)):
    products = omega[rows] @ omega[rows].T
    np.testing.assert_allclose(products, np.diag(np.diag(products)), atol=1e-12)
  many = orthogonal_normal(6000, DIM, 1)
  np.testing.assert_allclose(many.T @ many / 6000, np.eye(DIM), atol=0.06)
  assert not np.allclose(omega, orthogonal_normal(2 * DIM + 2, DIM, 1))


def test_directions_come_from_raw_bits_which_no_version_of_numpy_changes():
  for seed in range(20):
    # One row and column: the sign of the first normal number, the size of the second.
    raw = np.random.PCG64(seed).random_raw(4).tolist()
    (_, b), (c, d) = ([((word >> 11) + 0.5) / 2**53 for word in raw[i : i + 2]] for i in (0, 2))
    sign = math.copysign(1.0, math.cos(2 * math.pi * b))
    size = math.sqrt(-2 * math.log(c)) * abs(math.cos(2 * math.pi * d))
    assert orthogonal_normal(1, 1, seed).item() == pytest.approx(sign * size, rel=1e-12)


def test_relu_features_equal_the_formula():
  mixer, omega = build(ReluFeatures), orthogonal_normal(FEATURES, DIM, SEED)

  def log_relu_weights(q, k):
    phi_q, phi_k = (
      np.maximum(np.einsum('bnhd,fd->bnhf', a / DIM**0.25, omega), 0) + 1e-3 for a in (q, k)
    )
    return np.log(np.einsum('bihf,bjhf->bijh', phi_q, phi_k))

  y, _ = applied(mixer, X)
  expected = over_pairs(mixer, X, seen(TOKENS['plain'], Full()), log_relu_weights)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def directions(mixer, **fields):
  return np.asarray(mixer.features.at(Call(TOKENS['plain'], **fields)).omega)


def test_drawn_directions_equal_gram_schmidt_in_float64():
  """Of the same normal numbers, vector by vector."""
  rows, key = 2 * DIM + 2, jax.random.key(5)
  direction_key, norm_key = jax.random.split(key)
  normal = np.asarray(jax.random.normal(direction_key, (3, DIM, DIM)), np.float64)
  expected = []
  for block in normal:
    basis = []
    for vector in block.T:
      for other in basis:
        vector = vector - (vector @ other) * other
      basis.append(vector / np.sqrt(vector @ vector))
    expected += basis
  lengths = np.asarray(jax.random.normal(norm_key, (rows, DIM)), np.float64)
  expected = np.stack(expected)[:rows] * np.sqrt((lengths**2).sum(axis=1))[:, None]
  actual = jax.jit(drawn_directions, static_argnums=(0, 1))(rows, DIM, key)
  np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_drawn_directions_are_normal():
  many = np.asarray(drawn_directions(6000, DIM, jax.random.key(1)))
  np.testing.assert_allclose(many.T @ many / 6000, np.eye(DIM), atol=0.06)
  np.testing.assert_allclose(many.mean(axis=0), 0, atol=0.06)


@pytest.mark.parametrize('features', [FavorPlus, ReluFeatures])
def test_directions_are_the_same_within_a_period_and_differ_between_periods_layers_and_seeds(
  features,
):
  mixer = build(features, redraw_every=10)
  first = directions(mixer, step=20, place=1, repeat=2)
  at = jax.jit(
    lambda step, repeat: (
      mixer.features.at(Call(TOKENS['plain'], step=step, place=1, repeat=repeat)).omega
    )
  )
  np.testing.assert_allclose(at(jnp.int32(29), jnp.int32(2)), first, rtol=1e-6, atol=1e-6)
  np.testing.assert_array_equal(directions(mixer, step=29, place=1, repeat=2), first)
  others = [
    directions(mixer, step=19, place=1, repeat=2),
    directions(mixer, step=30, place=1, repeat=2),
    directions(mixer, step=20, place=2, repeat=2),
    directions(mixer, step=20, place=1, repeat=1),
    directions(build(features, redraw_every=10, seed=4), step=20, place=1, repeat=2),
  ]
  assert all(np.abs(first - other).max() > 0.1 for other in others)


def test_evaluation_has_the_directions_of_step_0():
  mixer = build(redraw_every=10)
  y, _ = run(mixer, X)
  np.testing.assert_array_equal(y, run(mixer, X, step=jnp.int32(9), key=jax.random.key(0))[0])
  assert np.abs(y - run(mixer, X, step=jnp.int32(10))[0]).max() > 1e-2


def test_without_redrawing_the_step_and_the_layer_change_nothing():
  mixer = build()
  y, _ = run(mixer, X, key=jax.random.key(0))
  np.testing.assert_array_equal(y, run(mixer, X, step=jnp.int32(5000), repeat=jnp.int32(3))[0])
  omega = orthogonal_normal(FEATURES, DIM, SEED).astype(np.float32)
  expected = jnp.einsum('blhd,fd->blhf', X[:, :, None, :DIM], omega)
  np.testing.assert_array_equal(mixer.features.project(X[:, :, None, :DIM]), expected)


@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize('pattern', PATTERNS, ids=str)
def test_redrawn_features_equal_the_sum_over_all_pairs(pattern, tokens):
  mixer, tokens = build(redraw_every=10), TOKENS[tokens]
  weights = functools.partial(log_weights, omega=directions(mixer, step=25))
  y, _ = run(mixer, X, pattern=pattern, tokens=tokens, step=jnp.int32(25))
  expected = over_pairs(mixer, X, seen(tokens, pattern), weights)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_decoding_with_redrawn_features_equals_the_forward_pass():
  mixer, layer = build(redraw_every=10), {'repeat': jnp.int32(1)}
  whole, _ = run(mixer, X, pattern=Causal(), **layer)
  state, outputs = empty(mixer, 2, LENGTH), []
  for i in range(LENGTH):
    y, state = run(mixer, X[:, i : i + 1], pattern=Causal(), state=state, **layer)
    outputs.append(y)
  np.testing.assert_allclose(jnp.concatenate(outputs, 1), whole, rtol=1e-5, atol=1e-5)


def test_gradients_of_redrawn_features_are_finite():
  mixer = build(redraw_every=10)

  @jax.jit
  @jax.grad
  def gradient(x, step):
    return (applied(mixer, x, pattern=Causal(), step=step)[0] ** 2).sum()

  first, later = (gradient(X, jnp.int32(step)) for step in (0, 10))
  assert jnp.isfinite(first).all() and jnp.isfinite(later).all() and not np.allclose(first, later)


def test_redrawing_without_a_step_or_without_the_call_is_refused():
  mixer = build(redraw_every=10)
  with pytest.raises(UserError, match='redraw_every = 10 needs the train step'):
    applied(mixer, X, key=jax.random.key(0))
  with pytest.raises(UserError, match='redraw_every = 10 would have no effect'):
    mixer.features.queries(X[:, :, None, :DIM])
