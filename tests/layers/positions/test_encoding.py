"""The hooks of position encodings: what each is called with, and who refuses which."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, empty
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  XLA,
  AddressPositions,
  ALiBi,
  Blockwise,
  Causal,
  Dense,
  Disentangled,
  LearnedPositions,
  MultiHeadAttention,
  NoPositions,
  PositionEncoding,
  RandomScores,
  RMSNorm,
  RoPE,
  ShawPositions,
  Tokens,
  normal,
)

WIDTH, HEADS, SIZE, LENGTH = 12, 4, 3, 6
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)


def build(**settings):
  settings = {'num_heads': HEADS, 'num_kv_heads': 2, 'kernel': Dense()} | settings
  return MultiHeadAttention(WIDTH, kernel_init=normal(0.5), rngs=nnx.Rngs(0), **settings)


def test_hooks_are_the_methods_that_a_class_overrides():
  rngs = nnx.Rngs(0)
  assert NoPositions(8, rngs=rngs).hooks == set()
  assert LearnedPositions(8, max_length=4, rngs=rngs).hooks == {'embed'}
  assert LearnedPositions(8, max_length=4, rngs=rngs).mixer_hooks == set()
  assert RoPE(8, rngs=rngs).mixer_hooks == {'rotate'}
  assert ALiBi(8, num_heads=2, rngs=rngs).mixer_hooks == {'scores'}
  shaw = functools.partial(ShawPositions, 8, head_dim=4, rngs=rngs)
  assert shaw().hooks == {'scores'} and shaw(values=True).hooks == {'scores', 'values'}

  class Both(RoPE):
    def embed(self, x, tokens):
      return x

  assert Both(8, rngs=rngs).hooks == {'embed', 'rotate'}


class Address(PositionEncoding):
  """A vector for each position, added before the projections of queries and keys."""

  def __init__(self, table):
    self.table = nnx.Param(table)

  def address(self, x, tokens):
    return x + self.table[...][tokens.positions]


def test_addresses_reach_queries_and_keys_but_not_values():
  attention, table = build(), 0.5 * jax.random.normal(jax.random.key(0), (9, WIDTH))
  positions = jnp.asarray([[0, 1, 2, 3, 4, 5], [3, 2, 5, 8, 0, 1]])
  y, _ = applied(attention, X, tokens=Tokens(positions), encoding=Address(table))
  kept = attention.v
  moved = X + table[positions]
  attention.v = lambda x: kept(X)
  expected, _ = applied(attention, moved, tokens=Tokens(positions))
  np.testing.assert_allclose(y, expected, atol=1e-6)


def test_an_address_is_added_once_per_side_and_cached():
  attention, table = build(), 0.5 * jax.random.normal(jax.random.key(0), (9, WIDTH))
  whole, _ = applied(attention, X, pattern=Causal(), encoding=Address(table))
  state, outputs = empty(attention, 2, LENGTH), []
  for i in range(LENGTH):
    tokens = Tokens(jnp.full((2, 1), i), jnp.ones((2, 1), int))
    y, state = applied(
      attention,
      X[:, i : i + 1],
      pattern=Causal(),
      tokens=tokens,
      encoding=Address(table),
      state=state,
    )
    outputs.append(y)
  np.testing.assert_allclose(jnp.concatenate(outputs, 1), whole, atol=1e-5)


@pytest.mark.parametrize('kernel', [Dense(), XLA()], ids=str)
def test_terms_of_content_read_projections_and_share_the_scale(kernel):
  """DeBERTa's scores, pair by pair in float64."""
  attention, reach = build(kernel=kernel, qk_norm=RMSNorm), 3
  settings = {'max_distance': reach, 'num_buckets': None, 'norm': None, 'init': normal(1.0)}
  encoding = Disentangled(WIDTH, rngs=nnx.Rngs(0), **settings)
  table = encoding.table[...]
  y, _ = applied(attention, X, pattern=Causal(), encoding=encoding)

  def project(linear, norm, x):
    out = np.einsum('...d,dhe->...he', np.asarray(x, np.float64), np.asarray(linear.kernel[...]))
    if norm is None:
      return out
    return (
      out / np.sqrt(np.square(out).mean(-1, keepdims=True) + 1e-6) * np.asarray(norm.scale[...])
    )

  q, k, v = (
    project(linear, norm, X)
    for linear, norm in (
      (attention.q, attention.q_norm),
      (attention.k, attention.k_norm),
      (attention.v, None),
    )
  )
  of_q, of_k = (
    project(linear, norm, table)
    for linear, norm in ((attention.q, attention.q_norm), (attention.k, attention.k_norm))
  )
  expected = np.zeros(X.shape)
  for row, head, i in np.ndindex(2, HEADS, LENGTH):
    group, scores = head // 2, []
    for j in range(i + 1):
      at = min(max(i - j, -reach), reach - 1) + reach
      score = q[row, i, head] @ k[row, j, group] + q[row, i, head] @ of_k[at, group]
      scores.append((score + k[row, j, group] @ of_q[at, head]) / np.sqrt(3 * SIZE))
    weights = np.exp(scores)
    read = weights / weights.sum() @ v[row, : i + 1, group]
    expected[row, i] += read @ np.asarray(attention.out.kernel[...], np.float64)[head]
  np.testing.assert_allclose(y, expected, atol=1e-5)


def test_terms_of_content_are_given_the_mask():
  masks = []

  class Looks(PositionEncoding):
    reads_content = True

    def scores(self, q, k, q_tokens, k_tokens, *, scale, project, visible):
      masks.append(visible)
      return jnp.zeros((1, HEADS, LENGTH, LENGTH))

  applied(build(), X, pattern=Causal(), encoding=Looks())
  applied(build(), X, encoding=Looks())
  np.testing.assert_array_equal(masks[0][0, 0], Causal().mask(LENGTH, LENGTH))
  assert masks[1] is None


@pytest.mark.parametrize(
  'encoding',
  [Address(jnp.zeros((LENGTH, WIDTH))), RoPE(WIDTH, rngs=nnx.Rngs(0))],
  ids=['address', 'rotate'],
)
def test_a_mixer_refuses_hooks_that_it_would_not_call(encoding):
  attention = build(num_kv_heads=HEADS, scores=functools.partial(RandomScores, max_length=LENGTH))
  with pytest.raises(UserError, match='works on queries and keys'):
    applied(attention, X, encoding=encoding)
  embedded_only = LearnedPositions(WIDTH, max_length=LENGTH, rngs=nnx.Rngs(0))
  applied(attention, X, encoding=embedded_only)


def test_kernels_without_probabilities_refuse_values():
  encoding = ShawPositions(WIDTH, head_dim=SIZE, values=True, rngs=nnx.Rngs(0))
  for kernel in (XLA(), Blockwise(4, 4)):
    with pytest.raises(UserError, match='ShawPositions'):
      applied(build(kernel=kernel), X, encoding=encoding)


@pytest.mark.parametrize('positions', [RoPE, NoPositions])
def test_addresses_need_an_encoding_that_adds_vectors(positions):
  with pytest.raises(UserError, match=f'@{positions.__name__} is not an encoding that adds'):
    AddressPositions(WIDTH, positions=positions, rngs=nnx.Rngs(0))


def test_addresses_limit_the_length_like_the_positions_that_they_add():
  learned = functools.partial(LearnedPositions, max_length=4)
  encoding = AddressPositions(WIDTH, positions=learned, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='6 tokens is longer than the 4 positions'):
    applied(build(), X, encoding=encoding)
