"""Attention patterns of blocks and strides (Child et al. 2019, Sparse Transformer, https://arxiv.org/abs/1904.10509)."""

import dataclasses
from typing import Any

from t2x.base.ranges import Natural, Size
from t2x.layers.patterns.algebra import Pattern, require
from t2x.layers.patterns.tiles import Bounds, Interval, Tiles
from t2x.layers.tokens import Tokens

__all__ = ['Blocks', 'Fixed', 'Strided']


@dataclasses.dataclass(frozen=True)
class Blocks(Pattern):
  """Every query sees the keys of its own block of `size` positions and of the `before` positions before it."""

  size: Size
  before: Natural = 0

  def __post_init__(self):
    require(self.size >= 1, f'Blocks.size must be at least 1, not {self.size}')
    require(self.before >= 0, f'Blocks.before must be at least 0, not {self.before}')

  @property
  def period(self) -> tuple[int, int]:
    return self.size, 0

  def allows(self, q: Tokens, k: Tokens) -> Any:
    first, last = self._visible(q.positions)
    return (first <= k.positions) & (k.positions <= last)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    # The bounds of the visible keys grow with the position of the query.
    low, high = self._visible(q.low.positions), self._visible(q.high.positions)
    empty = (k.high.positions < low[0]) | (high[1] < k.low.positions)
    return Tiles(empty, (high[0] <= k.low.positions) & (k.high.positions <= low[1]))

  def _visible(self, positions: Any) -> tuple[Any, Any]:
    """Returns the first and the last position that queries see."""
    start = positions // self.size * self.size
    return start - self.before, start + self.size - 1


@dataclasses.dataclass(frozen=True)
class Strided(Pattern):
  """Every query sees the keys at distances that are multiples of `stride`.

  Sparse Transformer's strided attention (https://arxiv.org/abs/1904.10509) is
  `Causal() & (Window(stride) | Strided(stride))`.
  """

  stride: Size
  relative = True

  def __post_init__(self):
    require(self.stride >= 1, f'Strided.stride must be at least 1, not {self.stride}')

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return (q.positions - k.positions) % self.stride == 0

  def offsets(self) -> Interval | None:
    return (None, None) if self.stride == 1 else None


@dataclasses.dataclass(frozen=True)
class Fixed(Pattern):
  """Every query sees its own block of `stride` positions and the `last` positions of all blocks.

  Sparse Transformer's fixed attention (https://arxiv.org/abs/1904.10509) is `Causal() & Fixed(stride, last)`.
  """

  stride: Size
  last: Size

  def __post_init__(self):
    require(
      1 <= self.last < self.stride,
      f'Fixed.last must be at least 1 and below the stride, not {self.last} of {self.stride}',
    )

  @property
  def period(self) -> tuple[int, int]:
    return self.stride, 0

  def allows(self, q: Tokens, k: Tokens) -> Any:
    is_last = k.positions % self.stride >= self.stride - self.last
    return Blocks(self.stride).allows(q, k) | is_last

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    own = Blocks(self.stride).tile(q, k)
    first, final = k.low.positions, k.high.positions
    one_block = first // self.stride == final // self.stride
    has_last = ~one_block | (final % self.stride >= self.stride - self.last)
    only_last = one_block & (first % self.stride >= self.stride - self.last)
    return Tiles(own.empty & ~has_last, own.full | only_last)
