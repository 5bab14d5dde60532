"""The tiles that a blockwise kernel visits.

What follows from lengths and layout is decided before run time. Among the tiles that remain, those that
are empty by marks, positions or segments are skipped at run time: the indices of the others are moved to
the front of a table, and the kernel loops over as many as there are.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2x.layers.base import RowLayout, Tokens
from t2x.layers.masks import visible_tiles
from t2x.layers.patterns import Pattern
from t2x.layers.tiles import SKIP, Bounds


@functools.partial(
  jax.tree_util.register_dataclass, data_fields=['table', 'count'], meta_fields=['is_masked']
)
@dataclasses.dataclass(frozen=True)
class TileList:
  """Tiles to visit.

  Attributes:
    table: indices (query block, key block) of tiles, [size, 2].
    count: rows of the table to visit, where this is known at run time only; None: all.
    is_masked: whether the tiles need a mask.
  """

  table: Any
  count: Any
  is_masked: bool

  def loop(self, visit: Callable[[Any, Any, Any], Any], carry: Any) -> Any:
    """Folds `visit(query block, key block, carry)` over the tiles."""

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
  """The tiles that some row of the batch needs: those without a mask and those with one.

  Args:
    pattern: who may see whom.
    q_tokens: metadata of the queries.
    k_tokens: metadata of the keys.
    q_block: queries in a tile.
    k_block: keys in a tile.
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
  empty, full = (_of_all_rows(x, len(candidates)) for x in tiles)
  # Keys beyond the end of the row need a mask.
  full = full & (j < k_len // k_block)
  lists = _chosen(candidates, full, False), _chosen(candidates, ~(empty | full), True)
  return [one for one in lists if len(one.table)]


def _of_all_rows(verdict: Any, size: int) -> Any:
  """[#batch, #size] -> [size]: whether the verdict holds for every row of the batch."""
  if isinstance(verdict, jax.Array):
    return jnp.broadcast_to(jnp.atleast_2d(verdict).all(0), size)
  return np.broadcast_to(np.atleast_2d(verdict).all(0), size)


def _chosen(candidates: np.ndarray, chosen: Any, is_masked: bool) -> TileList:
  if not isinstance(chosen, jax.Array):
    return TileList(jnp.asarray(candidates[chosen]), None, is_masked)
  (index,) = jnp.nonzero(chosen, size=len(candidates), fill_value=0)
  return TileList(jnp.asarray(candidates)[index], chosen.sum(), is_masked)
