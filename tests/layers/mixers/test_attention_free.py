"""AFT: chunks, running sums and windows against the definition over all pairs of tokens in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  AttentionFree,
  Causal,
  ConvBias,
  FactorizedBias,
  Full,
  FullBias,
  LocalBias,
  NoBias,
  Tokens,
  normal,
)

WIDTH, LENGTH = 12, 11
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
# The tokens of a segment are contiguous; the second row starts with padding.
PACKED = np.asarray([[1, 1, 1, 1, 2, 2, 2, 3, 3, 0, 0], [0, 0, 1, 2, 2, 2, 2, 2, 2, 3, 0]])
PADDED = np.asarray([[1] * 9 + [0] * 2, [1] * 5 + [0] * 6])
PLAIN = np.ones((2, LENGTH), int)

wide = normal(1.0)
BIASES = {
  'simple': (NoBias, 1),
  'local': (functools.partial(LocalBias, max_length=13, window=3, init=wide), 2),
  'conv': (functools.partial(ConvBias, window=4, init=wide), 3),
  'full': (functools.partial(FullBias, max_length=13, chunk=4, init=wide), 2),
  'factorised': (functools.partial(FactorizedBias, max_length=13, rank=2, chunk=4, init=wide), 1),
}
ONE_SEGMENT = ('full', 'factorised')
PATTERNS = [Causal(), Full()]

run = jax.jit(applied, static_argnames='pattern')


def build(name, **settings):
  bias, num_heads = BIASES[name]
  mixer = AttentionFree(WIDTH, bias=bias, num_heads=num_heads, rngs=nnx.Rngs(0), **settings)
  return moved(mixer)


def tokens_of(segments):
  """Tokens with positions from 0 in each segment."""
  positions = np.zeros(segments.shape, int)
  for row, segment in zip(positions, segments, strict=True):
    for number in np.unique(segment):
      row[segment == number] = np.arange((segment == number).sum())
  return Tokens(jnp.asarray(positions), jnp.asarray(segments))


def pair_biases(name, bias, positions, heads):
  """The biases [batch, heads, queries, keys] by their definition."""
  q, k = positions[:, :, None], positions[:, None]
  if name == 'simple':
    return np.zeros((*np.broadcast_shapes(q.shape, k.shape), heads)).transpose(0, 3, 1, 2)
  if name in ONE_SEGMENT:
    table = (
      double(bias.table)
      if name == 'full'
      else np.einsum('hir,hjr->hij', double(bias.a), double(bias.b))
    )
    return table[:, q, k].transpose(1, 0, 2, 3)
  distance, reach = k - q, bias.reach
  column = np.clip(distance + reach - 1, 0, 2 * reach - 2)
  table = double(bias.table)
  w = table[q, column] if name == 'local' else table[column]
  return np.where((abs(distance) < reach)[..., None], w, 0).transpose(0, 3, 1, 2)


def definition(name, mixer, x, tokens, is_causal):
  """The layer over all pairs of tokens in float64; rows of padding are zero."""

  def project(linear):
    return np.einsum('bnm,mhd->bnhd', np.asarray(x, np.float64), double(linear.kernel)) + double(
      linear.bias
    )

  q, k, v = project(mixer.q), project(mixer.k), project(mixer.v)
  segments, positions = np.asarray(tokens.segments), np.asarray(tokens.positions)
  w = pair_biases(name, mixer.bias, positions, mixer.num_heads)
  visible = (segments[:, :, None] == segments[:, None]) & (segments != 0)[:, None]
  if is_causal:
    visible = np.tril(visible)
  logits = k[:, None] + w.transpose(0, 2, 3, 1)[..., None]
  logits = np.where(visible[..., None, None], logits, -np.inf)
  weights = np.exp(logits - np.maximum(logits.max(axis=2, keepdims=True), -1e9))
  total = np.maximum(weights.sum(axis=2), 1e-9)
  y = (weights * v[:, None]).sum(axis=2) / total / (1 + np.exp(-q))
  y = np.einsum('bnhd,hdm->bnm', y, double(mixer.out.kernel)) + double(mixer.out.bias)
  return y * (segments != 0)[..., None]


CASES = [
  (name, segments)
  for name in BIASES
  for segments in (PLAIN, PADDED, PACKED)
  if segments is not PACKED or name not in ONE_SEGMENT
]


@pytest.mark.parametrize('pattern', PATTERNS, ids=str)
@pytest.mark.parametrize(('name', 'segments'), CASES)
def test_averages_equal_the_definition(name, segments, pattern):
  mixer, tokens = build(name), tokens_of(segments)
  expected = definition(name, mixer, X, tokens, pattern == Causal())
  if name in ONE_SEGMENT:
    tokens = Tokens.row(LENGTH, segments=tokens.segments)
  y, _ = run(mixer, X, pattern=pattern, tokens=tokens)
  is_token = (segments != 0)[..., None]
  np.testing.assert_allclose(np.where(is_token, y, 0), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize('name', BIASES)
def test_a_large_later_key_changes_no_earlier_output(name):
  """Relative to a maximum over all keys, the weights of earlier keys would underflow to zero."""
  mixer = build(name)
  y, _ = run(mixer, X, pattern=Causal())
  for place in (5, 9):
    changed, _ = run(mixer, X.at[:, place].multiply(1e4), pattern=Causal())
    np.testing.assert_array_equal(changed[:, :place], y[:, :place])
    assert jnp.isfinite(changed).all()


@pytest.mark.parametrize(
  'pattern', [Causal(), pytest.param(Full(), marks=pytest.mark.nightly)], ids=str
)
@pytest.mark.parametrize('name', BIASES)
def test_gradients_match_the_sum_over_pairs(name, pattern):
  """Along a random direction of the parameters and inputs, by differences of the definition."""
  mixer, tokens = build(name), tokens_of(PLAIN)
  rng = np.random.default_rng(2)
  leaves, structure = jax.tree.flatten((mixer, X))
  direction = [jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) for leaf in leaves]
  weights = rng.normal(size=X.shape)

  def loss(pair):
    y, _ = applied(pair[0], pair[1], pattern=pattern)
    return (y * jnp.asarray(weights, jnp.float32)).sum()

  gradient = jax.jit(jax.grad(loss))((mixer, X))
  slope = sum(
    float((g * d).sum()) for g, d in zip(jax.tree.leaves(gradient), direction, strict=True)
  )

  def at(step):
    mixer, x = structure.unflatten(
      [
        np.asarray(a, np.float64) + step * np.asarray(d)
        for a, d in zip(leaves, direction, strict=True)
      ]
    )
    return (definition(name, mixer, x, tokens, pattern == Causal()) * weights).sum()

  expected = (at(1e-5) - at(-1e-5)) / 2e-5
  assert slope == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize('name', ['local', 'conv', 'full', 'factorised'])
def test_decoding_with_position_biases_is_refused(name):
  with pytest.raises(UserError, match=r'Bias cannot decode token by token: use NoBias, or an Enc'):
    build(name).init_cache(2, 8)


@pytest.mark.parametrize('name', ONE_SEGMENT)
def test_all_pairs_refuse_long_rows(name):
  mixer = build(name)
  with pytest.raises(UserError, match=r'a row of 22 tokens is longer than \w+Bias.max_length = 13'):
    applied(mixer, jnp.concatenate([X, X], axis=1))
