"""Token shift against slices of the input. Contracts are in tests/contracts."""

import functools

import jax.numpy as jnp
import numpy as np
from applying import applied, empty
from flax import nnx

from t2x.layers import (
  MLP,
  Causal,
  FeedForward,
  FromSource,
  Full,
  MultiHeadAttention,
  Result,
  SourceSequence,
  Tokens,
  TokenShift,
)

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 8)), jnp.float32)


class Same(FeedForward):
  """Returns its input."""

  def __init__(self, d_model, *, rngs):
    pass

  def __call__(self, x, call, cache=None):
    return Result(x)


def build(width, sublayer=Same):
  return TokenShift(width, sublayer=sublayer, rngs=nnx.Rngs(0))


def later(x, steps):
  """The vectors of the tokens `steps` before each token, or zeros."""
  return np.pad(x, ((0, 0), (max(steps, 0), max(-steps, 0)), (0, 0)))[
    :, max(-steps, 0) : x.shape[1] + max(-steps, 0)
  ]


def test_half_of_the_features_come_from_the_previous_token(compared):
  y, _ = applied(build(8), X, pattern=Causal())
  expected = np.concatenate([X[..., :4], later(X[..., 4:], 1)], -1)
  compared('token shift', 'NumPy, slices', y, expected, atol=0)


def test_without_causality_a_third_comes_from_each_neighbour():
  y, _ = applied(build(8), X, pattern=Full())
  parts = [later(X[..., :2], -1), X[..., 2:4], later(X[..., 4:6], 1), X[..., 6:]]
  np.testing.assert_array_equal(y, np.concatenate(parts, -1))


def test_segments_do_not_exchange_features():
  tokens = Tokens(jnp.asarray([[0, 1, 2, 0, 1, 0]]), jnp.asarray([[1, 1, 1, 2, 2, 0]]))
  y, _ = applied(build(8), X[:1], pattern=Causal(), tokens=tokens)
  np.testing.assert_array_equal(y[0, 3, 4:], 0)
  np.testing.assert_array_equal(y[0, 4, 4:], X[0, 3, 4:])


def test_the_sublayer_receives_the_shifted_input():
  mlp = functools.partial(MLP, hidden_dim=16)
  shift = build(8, mlp)
  inputs, _ = applied(build(8), X, pattern=Causal())
  expected, _ = applied(shift.sublayer, inputs)
  np.testing.assert_allclose(applied(shift, X, pattern=Causal())[0], expected, rtol=1e-6)


def test_queries_of_a_source_are_shifted_and_cached():
  cross = functools.partial(FromSource, sublayer=functools.partial(MultiHeadAttention, num_heads=2))
  shift, source = build(8, cross), SourceSequence(X[:, :4], Tokens.row(4))
  inputs, _ = applied(build(8), X, pattern=Causal())
  expected, _ = applied(shift.sublayer, inputs, source=source)
  y, _ = applied(shift, X, pattern=Causal(), source=source)
  np.testing.assert_allclose(y, expected, rtol=1e-6)
  state = empty(shift, 2, 6, source=source)
  for i in range(6):
    tokens = Tokens(jnp.full((2, 1), i), jnp.ones((2, 1), jnp.int32))
    call = {'tokens': tokens, 'pattern': Causal(), 'source': source.without_vectors()}
    one, state = applied(shift, X[:, i : i + 1], state=state, **call)
    np.testing.assert_allclose(one[:, 0], expected[:, i], rtol=2e-5, atol=1e-6)
