"""Matrices over positions: padding, and what is refused. (Values: parity/test_token_mlps.)"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Call, Causal, SpatialGating, TokenMLP, Tokens

part = functools.partial
LENGTH, WIDTH = 6, 4
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
BUILDS = [part(build, length=LENGTH, hidden_dim=8) for build in (TokenMLP, SpatialGating)]
CALL = Call(Tokens.row(LENGTH))


def perturbed(build):
  keys = nnx.Rngs(1)
  part = build(WIDTH, rngs=nnx.Rngs(0))
  return jax.tree.map(lambda x: x + jax.random.normal(keys.params(), x.shape), part)


def with_segments(*rows):
  return Call(Tokens.row(LENGTH, segments=jnp.asarray(rows), right_padded=True))


@pytest.mark.parametrize('build', BUILDS)
def test_the_content_of_padding_changes_no_token_and_packed_rows_are_nan(build):
  layer = perturbed(build)
  call = with_segments([1, 1, 1, 1, 0, 0], [1, 1, 2, 2, 0, 0])
  y = layer(X, call).x
  other = layer(X.at[:, 4:].add(1.0), call).x
  np.testing.assert_array_equal(y[0, :4], other[0, :4])
  assert not np.isnan(y[0]).any() and np.isnan(y[1]).all()
  # Padding is zero: another row of the same length without padding is another.
  assert np.abs(np.asarray(y[0, :4] - layer(X, CALL).x[0, :4])).max() > 1e-3


@pytest.mark.parametrize('build', BUILDS)
def test_rows_of_another_length_and_generation_are_refused(build):
  layer = build(WIDTH, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=r'rows of 5 tokens, but .* parameters for 6 positions'):
    layer(X[:, :5], Call(Tokens.row(5)))
  with pytest.raises(UserError, match='cannot decode token by token'):
    layer.init_cache(1, LENGTH, jnp.float32)


def test_a_causal_row_is_refused_by_the_mlp_over_tokens_and_an_odd_width_by_the_gate():
  layer = BUILDS[0](WIDTH, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='does not support the pattern Causal'):
    layer(X, dataclasses.replace(CALL, pattern=Causal()))
  with pytest.raises(UserError, match='hidden_dim = 7 must be even'):
    SpatialGating(WIDTH, length=LENGTH, hidden_dim=7, rngs=nnx.Rngs(0))


def test_the_gate_starts_open():
  layer = BUILDS[1](WIDTH, rngs=nnx.Rngs(0))
  u = jax.nn.gelu(layer.up(X), approximate=False)[:, :, 0]
  np.testing.assert_allclose(layer(X, CALL).x, layer.down(u), rtol=0, atol=1e-4)
