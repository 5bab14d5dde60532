"""Patterns over the rows and columns of a grid of tokens (images)."""

import dataclasses
from typing import Any

from t2x.base.errors import UserError
from t2x.base.ranges import Natural
from t2x.layers.patterns.algebra import Pattern
from t2x.layers.tokens import Tokens, grid_places

__all__ = ['GridWindow']


@dataclasses.dataclass(frozen=True)
class GridWindow(Pattern):
  """Every query sees the keys of the rows and columns within `radius` of its own, and the tokens before the grid (class
  token, registers); those see all tokens.

  `GridWindow(2) | Marked('global')` and more registers add global tokens. The grid is that of `Tokens.grid`, which
  `PatchEmbedding` sets.
  """

  radius: Natural

  reads = frozenset({'positions', 'grid'})

  def allows(self, q: Tokens, k: Tokens) -> Any:
    if q.grid is None or len(q.grid) != 2 or k.grid != q.grid:
      raise UserError(
        f'{self} needs a grid of rows and columns, but the tokens have the grid {q.grid}: use an embedding that sets '
        'Tokens.grid, such as PatchEmbedding'
      )
    (q_index, q_row, q_column), (k_index, k_row, k_column) = map(grid_places, (q, k))
    near = (abs(q_row - k_row) <= self.radius) & (abs(q_column - k_column) <= self.radius)
    return near | (q_index < 0) | (k_index < 0)
