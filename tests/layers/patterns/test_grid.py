"""Windows of rows and columns, against loops; in a ViT, dense and in tiles."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Blockwise,
  Call,
  Dense,
  GridWindow,
  Marked,
  MultiHeadAttention,
  Tokens,
)

GRID, EXTRA = (4, 5), 2
LENGTH = EXTRA + 20
TOKENS = Tokens.row(LENGTH, grid=GRID, num_extra=EXTRA)


def by_loops(radius):
  mask = np.zeros((LENGTH, LENGTH), bool)
  for q, k in itertools.product(range(LENGTH), repeat=2):
    (q_row, q_column), (k_row, k_column) = (divmod(i - EXTRA, GRID[1]) for i in (q, k))
    near = max(abs(q_row - k_row), abs(q_column - k_column)) <= radius
    mask[q, k] = near or q < EXTRA or k < EXTRA
  return mask


@pytest.mark.parametrize('radius', [0, 1, 4])
def test_queries_see_the_rows_and_columns_near_them_and_the_tokens_before_the_grid(radius):
  np.testing.assert_array_equal(GridWindow(radius).mask(TOKENS, TOKENS), by_loops(radius))


def test_marked_patches_are_global():
  marked = np.isin(np.arange(LENGTH), [5, 17])[None]
  tokens = Tokens.row(LENGTH, grid=GRID, num_extra=EXTRA, marks={'global': marked})
  mask = (GridWindow(1) | Marked('global')).mask(tokens, tokens)
  np.testing.assert_array_equal(mask, by_loops(1) | marked | marked.T)


def test_attention_in_tiles_equals_dense_attention():
  x = jax.random.normal(jax.random.key(0), (2, LENGTH, 8))

  def run(kernel):
    part = MultiHeadAttention(8, num_heads=2, kernel=kernel, rngs=nnx.Rngs(0))
    return jax.jit(lambda x: part(x, Call(TOKENS, pattern=GridWindow(1))).x)(x)

  np.testing.assert_allclose(run(Blockwise(q_block=8, k_block=8)), run(Dense()), atol=2e-6)


def test_tokens_without_a_grid_are_refused():
  with pytest.raises(UserError, match=r'GridWindow\(radius=1\) needs a grid of rows and columns'):
    GridWindow(1).mask(4, 4)
  assert not GridWindow(1).is_causal(4)


def test_a_radius_of_the_grid_sees_all():
  assert jnp.all(GridWindow(4).mask(TOKENS, TOKENS))
