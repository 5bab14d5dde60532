"""What parts over a grid refuse: attention to squares of it, and an MLP of neighbours. tests/parity/test_segformer.py
and tests/contracts check what they compute."""

import jax.numpy as jnp
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Call,
  Causal,
  Full,
  GridMLP,
  GridRoPE,
  MultiHeadAttention,
  ReducedKeyValues,
  Tokens,
)

GRID = Tokens.row(12, grid=(3, 4))


def attention(ratio=2):
  def key_values(*sizes, rngs):
    return ReducedKeyValues(*sizes, ratio=ratio, rngs=rngs)

  return MultiHeadAttention(8, num_heads=2, key_values=key_values, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
  ('ratio', 'call', 'message'),
  [
    (2, Call(GRID, Causal()), 'ReducedKeyValues does not support the pattern Causal'),
    (2, Call(GRID, Full(), encoding=GridRoPE(4, rngs=nnx.Rngs(0))), 'leave the encoding out'),
    (2, Call(Tokens.row(12), Full()), 'ReducedKeyValues needs one grid of tokens per row'),
    (2, Call(Tokens.row(12, grid=(3, 2, 2)), Full()), 'ReducedKeyValues needs rows and columns'),
    (4, Call(GRID, Full()), r'ratio = 4 is larger than a side of the grid 3 x 4'),
  ],
)
def test_squares_need_a_grid_without_positions_or_hidden_tokens(ratio, call, message):
  with pytest.raises(UserError, match=message):
    attention(ratio)(jnp.ones((1, 12, 8)), call)


def test_squares_of_one_token_and_even_kernels_are_refused():
  with pytest.raises(UserError, match='ratio = 1 reduces nothing'):
    attention(1)
  with pytest.raises(UserError, match='kernel_size = 2: must be odd'):
    GridMLP(8, hidden_dim=4, kernel_size=2, rngs=nnx.Rngs(0))


def test_neither_decodes_token_by_token():
  with pytest.raises(UserError, match='cannot decode token by token'):
    attention().init_cache(1, 4)
  with pytest.raises(UserError, match='cannot decode token by token'):
    GridMLP(8, hidden_dim=4, rngs=nnx.Rngs(0)).init_cache(1, 4, jnp.float32)
