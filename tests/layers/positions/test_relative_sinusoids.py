"""Sinusoids of distances against their formulas in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  XLA,
  Blockwise,
  Causal,
  Dense,
  Full,
  MultiHeadAttention,
  RelativeSinusoids,
  Tokens,
  XLPositions,
  attention_mask,
  normal,
)

WIDTH, HEADS, SIZE, LENGTH = 16, 4, 4, 7
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
# Positions that are far apart, two documents in a row, padding.
TOKENS = Tokens(
  jnp.asarray([[0, 1, 2, 300, 0, 1, 2], [0, 1, 2, 3, 4, 0, 0]]),
  jnp.asarray([[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]]),
)


def attention(num_kv_heads=2, kernel=Dense()):
  return MultiHeadAttention(
    WIDTH,
    num_heads=HEADS,
    num_kv_heads=num_kv_heads,
    kernel=kernel,
    use_bias=False,
    kernel_init=normal(0.5),
    rngs=nnx.Rngs(0),
  )


def xl_positions(**settings):
  inits = {'kernel_init': normal(0.5), 'bias_init': normal(0.5)}
  return XLPositions(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(1), **inits | settings)


def double(array):
  return np.asarray(array, np.float64)


def sinusoid(distance, size):
  angles = distance / 10000.0 ** (np.arange(size // 2) / (size // 2))
  return np.concatenate([np.sin(angles), np.cos(angles)])


def oracle(part, score):
  """`score(q, k, head, distance)` for each pair, in float64."""
  q, k, v = (
    np.einsum('bld,dhe->blhe', double(X), double(linear.kernel[...]))
    for linear in (part.q, part.k, part.v)
  )
  positions = np.asarray(TOKENS.positions)

  def output(mask):
    y = np.tile(double(part.out.bias[...]), (*X.shape[:2], 1))
    for row, head, i in np.ndindex(2, HEADS, LENGTH):
      group, keys = head // (HEADS // k.shape[2]), np.flatnonzero(mask[row, i])
      scores = [
        score(q[row, i, head], k[row, j, group], head, positions[row, i] - positions[row, j])
        for j in keys
      ]
      if scores:
        weights = np.exp(np.array(scores) / np.sqrt(SIZE))
        read = weights / weights.sum() @ v[row, keys, group]
        y[row, i] += read @ double(part.out.kernel[...])[head]
    return y

  return output


@pytest.mark.parametrize('kernel', [Dense(), XLA()], ids=str)
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_both_encodings_are_their_formulas(pattern, kernel, compared):
  part, xl, fixed = (
    attention(kernel=kernel),
    xl_positions(),
    RelativeSinusoids(WIDTH, rngs=nnx.Rngs(0)),
  )
  u, v, r = (double(a[...]) for a in (xl.content_bias, xl.position_bias, xl.r.kernel))

  def xl_score(q, k, head, distance):
    return (q + u[head]) @ k + (q + v[head]) @ (sinusoid(distance, WIDTH) @ r[:, head])

  def fixed_score(q, k, head, distance):
    return q @ k + q @ sinusoid(distance, SIZE)

  mask = np.asarray(attention_mask(pattern, TOKENS, TOKENS))[:, 0]
  run = jax.jit(functools.partial(applied, pattern=pattern, tokens=TOKENS))
  for name, encoding, score in (('Transformer-XL', xl, xl_score), (None, fixed, fixed_score)):
    y, _ = run(part, X, encoding=encoding)
    compared(name, 'NumPy, float64', y, oracle(part, score)(mask), rtol=1e-7, atol=2e-5)


def test_unsuitable_input_is_refused():
  with pytest.raises(UserError, match='4 heads of 4 features, but the attention has 4 heads of 2'):
    part = MultiHeadAttention(WIDTH, num_heads=HEADS, head_dim=2, rngs=nnx.Rngs(0))
    applied(part, X, encoding=xl_positions())
  with pytest.raises(UserError, match='must be even'):
    XLPositions(15, num_heads=5, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='even number of features, not 3'):
    part = MultiHeadAttention(WIDTH, num_heads=HEADS, head_dim=3, rngs=nnx.Rngs(0))
    applied(part, X, encoding=RelativeSinusoids(WIDTH, rngs=nnx.Rngs(0)))
  with pytest.raises(UserError, match='XLPositions, which reads the queries'):
    applied(attention(kernel=Blockwise(4, 4)), X, encoding=xl_positions())
