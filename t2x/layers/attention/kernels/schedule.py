"""Lists of the tiles that a blockwise kernel visits.

Tiles that are empty because of lengths and layout are excluded before run time. Tiles that are empty because
of marks, positions or segments are skipped at run time: the indices of nonempty tiles are moved to the front
of a table, and the kernel loops over their number.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from t2x.layers.arrays import Leaf
from t2x.layers.attention.kernels.base import visible_tiles
from t2x.layers.patterns.algebra import Pattern
from t2x.layers.patterns.tiles import SKIP, Bounds
from t2x.layers.tokens import RowLayout, Tokens

Carry = TypeVar('Carry')


@functools.partial(
  jax.tree_util.register_dataclass, data_fields=['table', 'count'], meta_fields=['is_masked']
)
@dataclasses.dataclass(frozen=True)
class TileList:
  """List of tiles to visit.

  Attributes:
    table: indices (query block, key block) of tiles, [size, 2].
    count: number of leading rows of the table to visit, a traced integer; None: all rows.
    is_masked: whether the tiles need a mask.
  """

  table: Leaf
  count: Leaf | None
  is_masked: bool

  def loop(self, visit: Callable[[Array, Array, Carry], Carry], carry: Carry) -> Carry:
    """Loops over the tiles with `carry = visit(query block, key block, carry)` and returns the last carry."""

    def body(step, carry):
      return visit(self.table[step, 0], self.table[step, 1], carry)

    size = len(self.table) if self.count is None else self.count
    return jax.lax.fori_loop(0, size, body, carry)


def tiles_to_visit(
  pattern: Pattern,
  q_tokens: Tokens,
  k_tokens: Tokens,
  q_block: int,
  k_block: int,
  layout: RowLayout,
) -> list[TileList]:
  """Returns the tiles that are nonempty for at least one row: a list without masks and a list with masks.

  Args:
    pattern: attention pattern.
    q_tokens: metadata of the queries.
    k_tokens: metadata of the keys.
    q_block: queries per tile.
    k_block: keys per tile.
    layout: `common_layout` of both.
  """
  q_len, k_len = q_tokens.positions.shape[1], k_tokens.positions.shape[1]
  q = Bounds.static(q_len, q_block, layout, q_tokens.marks)
  k = Bounds.static(k_len, k_block, layout, k_tokens.marks)
  tiles = pattern.tiles(q.as_queries(), k.as_keys())
  codes = tiles.codes(1, -(-q_len // q_block), -(-k_len // k_block))[0]
  candidates = np.argwhere(codes != SKIP).astype(np.int32)
  i, j = candidates.T
  q = Bounds.of(q_tokens, q_block, layout).map(lambda x: x[:, i])
  k = Bounds.of(k_tokens, k_block, layout).map(lambda x: x[:, j])
  tiles = visible_tiles(pattern, q, k)
  empty, full = (_all_rows(x, len(candidates)) for x in tiles)
  # Padding after the last key needs a mask.
  full = full & (j < k_len // k_block)
  lists = _tile_list(candidates, full, False), _tile_list(candidates, ~(empty | full), True)
  return [tile_list for tile_list in lists if len(tile_list.table)]


def tiles_of_blocks(pattern: Pattern, q: Bounds, k: Bounds, max_tiles: int) -> list[TileList]:
  """Returns the tiles of some blocks of a row, as `tiles_to_visit`.

  Args:
    pattern: attention pattern.
    q: bounds of the blocks of queries.
    k: bounds of the blocks of keys.
    max_tiles: the largest possible number of nonempty tiles.
  """
  num_q, num_k = q.low.positions.shape[1], k.low.positions.shape[1]
  candidates = np.argwhere(np.ones((num_q, num_k))).astype(np.int32)
  i, j = candidates.T
  tiles = visible_tiles(pattern, q.map(lambda x: x[:, i]), k.map(lambda x: x[:, j]))
  empty, full = (_all_rows(x, len(candidates)) for x in tiles)
  lists = (
    _tile_list(candidates, full & ~empty, False, max_tiles),
    _tile_list(candidates, ~(empty | full), True, max_tiles),
  )
  return [tile_list for tile_list in lists if len(tile_list.table)]


def _all_rows(condition: Array | np.ndarray, size: int) -> Array | np.ndarray:
  """Reduces a condition on tiles [#batch, #size] to [size]: whether it holds for every row of the batch."""
  if isinstance(condition, jax.Array):
    return jnp.broadcast_to(jnp.atleast_2d(condition).all(0), size)
  return np.broadcast_to(np.atleast_2d(condition).all(0), size)


def _tile_list(
  candidates: np.ndarray,
  is_selected: Array | np.ndarray,
  is_masked: bool,
  max_tiles: int | None = None,
) -> TileList:
  if not isinstance(is_selected, jax.Array):
    return TileList(jnp.asarray(candidates[is_selected]), None, is_masked)
  size = len(candidates) if max_tiles is None else max_tiles
  (index,) = jnp.nonzero(is_selected, size=size, fill_value=0)
  return TileList(jnp.asarray(candidates)[index], is_selected.sum(), is_masked)
