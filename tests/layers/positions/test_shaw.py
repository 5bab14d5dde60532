"""Shaw's relative positions: the formula, and which kernels take it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  XLA,
  Auto,
  Blockwise,
  Causal,
  Dense,
  Full,
  MultiHeadAttention,
  ShawPositions,
  Tokens,
  attention_mask,
  normal,
)

WIDTH, HEADS, SIZE, LENGTH, DISTANCE = 12, 4, 3, 7, 2
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
TOKENS = Tokens(
  jnp.asarray([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 0, 0]]),
  jnp.asarray([[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]]),
)


def build(kernel, num_kv_heads=2, values=False):
  settings = {'num_heads': HEADS, 'num_kv_heads': num_kv_heads, 'kernel_init': normal(0.5)}
  attention = MultiHeadAttention(WIDTH, kernel=kernel, use_bias=False, rngs=nnx.Rngs(0), **settings)
  encoding = ShawPositions(
    WIDTH,
    head_dim=SIZE,
    max_distance=DISTANCE,
    values=values,
    init=normal(1.0),
    rngs=nnx.Rngs(1),
  )
  return attention, encoding


def double(array):
  return np.asarray(array, np.float64)


def oracle(attention, encoding, x, mask, positions):
  """Equations 2 to 5 of the paper, pair by pair in float64; a^V is zero without a table of values."""
  x, table = double(x), double(encoding.table[...])
  value_table = 0 * table if encoding.value_table is None else double(encoding.value_table[...])
  q, k, v = (
    np.einsum('bld,dhe->blhe', x, double(linear.kernel[...]))
    for linear in (attention.q, attention.k, attention.v)
  )
  y = np.tile(double(attention.out.bias[...]), (*x.shape[:2], 1))
  for row, head, i in np.ndindex(x.shape[0], HEADS, x.shape[1]):
    group = head // (HEADS // k.shape[2])
    keys = np.flatnonzero(mask[row, i])
    if not len(keys):
      continue
    rows = np.clip(positions[row, keys] - positions[row, i], -DISTANCE, DISTANCE) + DISTANCE
    scores = (k[row, keys, group] + table[rows]) @ q[row, i, head]
    weights = np.exp(scores / np.sqrt(SIZE))
    read = (weights / weights.sum()) @ (v[row, keys, group] + value_table[rows])
    y[row, i] += read @ double(attention.out.kernel[...])[head]
  return y


@pytest.mark.parametrize('kernel', [Dense(), XLA(), Auto(), Auto(dense_scores=1)], ids=str)
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
@pytest.mark.parametrize('num_kv_heads', [4, 2])
def test_shaw_is_its_formula(kernel, pattern, num_kv_heads, compared):
  attention, encoding = build(kernel, num_kv_heads)
  settings = {'pattern': pattern, 'tokens': TOKENS}
  y, _ = jax.jit(lambda a, e: applied(a, X, encoding=e, **settings))(attention, encoding)
  mask = np.asarray(attention_mask(pattern, TOKENS, TOKENS))[:, 0]
  expected = oracle(attention, encoding, X, mask, np.asarray(TOKENS.positions))
  compared('Shaw positions', 'NumPy, float64', y, expected, rtol=1e-7)


@pytest.mark.parametrize('kernel', [Dense(), Auto(dense_scores=1)], ids=str)
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
@pytest.mark.parametrize('num_kv_heads', [4, 2])
def test_vectors_of_the_values_match_equation_3(kernel, pattern, num_kv_heads):
  attention, encoding = build(kernel, num_kv_heads, values=True)
  settings = {'pattern': pattern, 'tokens': TOKENS}
  y, _ = jax.jit(lambda a, e: applied(a, X, encoding=e, **settings))(attention, encoding)
  mask = np.asarray(attention_mask(pattern, TOKENS, TOKENS))[:, 0]
  expected = oracle(attention, encoding, X, mask, np.asarray(TOKENS.positions))
  np.testing.assert_allclose(y, expected, atol=1e-5)
  assert encoding.value_table[...].shape == encoding.table[...].shape


def test_shaw_does_not_see_a_shift():
  attention, encoding = build(Dense())
  positions = jnp.arange(LENGTH)[None]
  y, _ = applied(attention, X, tokens=Tokens(positions), encoding=encoding)
  shifted, _ = applied(attention, X, tokens=Tokens(positions + 30), encoding=encoding)
  np.testing.assert_allclose(shifted, y, atol=1e-5)


def test_unsupported_kernels_are_errors():
  attention, encoding = build(Blockwise(4, 4))
  with pytest.raises(UserError, match='ShawPositions, which reads the queries'):
    applied(attention, X, encoding=encoding)
  attention, _ = build(Dense())
  wrong = ShawPositions(WIDTH, head_dim=5, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='head_dim = 5'):
    applied(attention, X, encoding=wrong)
  with pytest.raises(UserError, match='max_distance'):
    ShawPositions(WIDTH, head_dim=5, max_distance=0, rngs=nnx.Rngs(0))
