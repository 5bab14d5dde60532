"""TUPE against its equations in float64, in every kernel, and per block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, empty
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  TUPE,
  XLA,
  Blockwise,
  Causal,
  Dense,
  Full,
  MultiHeadAttention,
  Tokens,
  attention_mask,
  normal,
)
from t2x.layers.arrays import named_leaves

WIDTH, HEADS, SIZE, LENGTH, MAX_LENGTH = 12, 2, 6, 7, 9
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
PACKED = Tokens(
  jnp.asarray([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 0, 0]]),
  jnp.asarray([[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]]),
)
KERNELS = [Dense(), XLA(), Blockwise(3, 2)]


def build(kernel=Dense(), **settings):
  attention = MultiHeadAttention(
    WIDTH, num_heads=HEADS, kernel=kernel, kernel_init=normal(0.5), rngs=nnx.Rngs(0)
  )
  inits = dict.fromkeys(('init', 'kernel_init', 'theta_init'), normal(0.8))
  settings = {'num_heads': HEADS, 'max_length': MAX_LENGTH} | inits | settings
  return attention, TUPE(WIDTH, rngs=nnx.Rngs(1), **settings)


def double(array):
  return np.asarray(array, np.float64)


def oracle(attention, encoding, x, mask, positions):
  """Equations 7 and 9 of the paper, pair by pair in float64."""
  x, table = double(x), double(encoding.table[...])
  q, k, v = (
    np.einsum('bld,dhe->blhe', x, double(linear.kernel[...])) + double(linear.bias[...])
    for linear in (attention.q, attention.k, attention.v)
  )
  position_q, position_k = (
    np.einsum('pd,dhe->phe', table, double(linear.kernel[...]))
    for linear in (encoding.q, encoding.k)
  )
  y = np.tile(double(attention.out.bias[...]), (*x.shape[:2], 1))
  for row, head, i in np.ndindex(x.shape[0], HEADS, x.shape[1]):
    keys = np.flatnonzero(mask[row, i])
    scores = []
    for j in keys:
      at, to = positions[row, i], positions[row, j]
      term = position_q[at, head] @ position_k[to, head] / np.sqrt(2 * SIZE)
      if encoding.first_query is not None:
        if at == 0:
          term = double(encoding.first_query[...])[head]
        elif to == 0:
          term = double(encoding.first_key[...])[head]
      scores.append(q[row, i, head] @ k[row, j, head] / np.sqrt(2 * SIZE) + term)
    if scores:
      weights = np.exp(scores - np.max(scores))
      read = weights / weights.sum() @ v[row, keys, head]
      y[row, i] += read @ double(attention.out.kernel[...])[head]
  return y


@pytest.mark.parametrize('kernel', KERNELS, ids=str)
@pytest.mark.parametrize('untied_first', [True, False])
@pytest.mark.parametrize('pattern', [Full(), Causal()], ids=str)
def test_tupe_is_its_formula(kernel, pattern, untied_first, compared):
  attention, encoding = build(kernel, untied_first=untied_first)
  run = jax.jit(lambda a, e: applied(a, X, pattern=pattern, tokens=PACKED, encoding=e)[0])
  mask = np.asarray(attention_mask(pattern, PACKED, PACKED))[:, 0]
  expected = oracle(attention, encoding, X, mask, np.asarray(PACKED.positions))
  compared('TUPE', 'NumPy, float64', run(attention, encoding), expected, rtol=1e-7)


def test_tupe_learns_alike_in_dense_and_blockwise():
  def gradient(kernel):
    attention, encoding = build(kernel)

    def loss(encoding):
      out, _ = applied(attention, X, tokens=PACKED, encoding=encoding)
      return (out * jnp.arange(out.size).reshape(out.shape)).sum()

    return dict(named_leaves(jax.jit(jax.grad(loss))(encoding)))

  dense, blockwise = gradient(Dense()), gradient(Blockwise(3, 2))
  # The softmax of a row cancels theta_1.
  assert jnp.abs(dense.pop('first_query')).max() < 1e-4
  for name, expected in dense.items():
    size = jnp.abs(expected).max()
    assert size > 0.1
    np.testing.assert_allclose(blockwise[name] / size, expected / size, atol=1e-5)


@pytest.mark.nightly
def test_decoding_with_tupe_equals_the_whole_row():
  attention, encoding = build()
  state, outputs = empty(attention, 2, LENGTH), []
  for start, stop in ((0, 4), (4, 5), (5, 7)):
    positions = jnp.broadcast_to(jnp.arange(start, stop), (2, stop - start))
    tokens = Tokens(positions, jnp.ones_like(positions))
    y, state = applied(
      attention, X[:, start:stop], pattern=Causal(), tokens=tokens, encoding=encoding, state=state
    )
    outputs.append(y)
  whole, _ = applied(attention, X, pattern=Causal(), encoding=encoding)
  np.testing.assert_allclose(jnp.concatenate(outputs, 1), whole, atol=1e-5)


def test_unsuitable_input_is_refused():
  attention, encoding = build(max_length=6)
  with pytest.raises(UserError, match='7 tokens is longer than the 6 positions of TUPE'):
    applied(attention, X, encoding=encoding)
  with pytest.raises(UserError, match='num_heads = 5 does not divide'):
    build(num_heads=5)
  with pytest.raises(UserError, match=r'set TUPE\.num_heads = 2'):
    applied(attention, X[:, :5], encoding=build(num_heads=3)[1])
