"""Classification of tiles of the attention matrix, from bounds on the metadata of blocks of tokens.

All functions support NumPy and JAX arrays. The classes of tiles are NumPy arrays if they follow from lengths
and layout, and traced arrays if they depend on marks, positions or segments.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int8

from t2x.layers.tokens import RowLayout, Tokens

SKIP, PARTIAL, FULL = 0, 1, 2

# Lowest and highest offset q - k; None: unbounded.
Interval = tuple[int | None, int | None]
_EMPTY: Interval = (1, 0)


class Tiles(NamedTuple):
  """Classes of tiles. A tile that is neither `empty` nor `full` needs a mask.

  Attributes:
    empty: True only if no query of the tile sees a key of the tile.
    full: True only if every query of the tile sees every key of the tile.
  """

  empty: Any
  full: Any

  @property
  def is_static(self) -> bool:
    """True if the classes are determined before run time."""
    return not isinstance(self.empty, jax.Array) and not isinstance(self.full, jax.Array)

  def codes(self, *shape: int) -> Int8[np.ndarray, '...']:
    """Returns SKIP, PARTIAL or FULL for each tile of an array of this shape; the classes must be static."""
    codes = np.full(shape, PARTIAL, np.int8)
    codes[np.broadcast_to(self.full, shape)] = FULL
    codes[np.broadcast_to(self.empty, shape)] = SKIP
    return codes


@dataclasses.dataclass(frozen=True)
class Bounds:
  """Minima and maxima of the token metadata in each block of a row.

  Attributes:
    low: minimum of each field over the block, [#batch, blocks, ...]. For a mark: whether all tokens have
      it. For segments: the minimum over tokens other than padding.
    high: maximum of each field. For a mark: whether any token has it.
    slots: first and last slot of each block, if differences of positions between queries and keys equal
      those of slots; else None.
    num_slots: number of slots of the row.
  """

  low: Tokens
  high: Tokens
  slots: tuple[Any, Any] | None = None
  num_slots: int = 0

  @classmethod
  def static(
    cls, length: int, block: int, layout: RowLayout, marks: Collection[str] = ()
  ) -> 'Bounds':
    """Returns the bounds that follow from length and layout, for tokens that may have these marks only."""
    first, last = _slots(length, block)
    zero, largest = np.zeros_like(first), np.full_like(last, np.iinfo(np.int32).max)
    low, high = {
      RowLayout.CONTIGUOUS: (first, last),
      RowLayout.PACKED: (zero, last),
      RowLayout.ARBITRARY: (zero, largest),
    }[layout]
    false = zero.astype(bool)
    return cls(
      Tokens(low, marks=dict.fromkeys(marks, false)),
      Tokens(high, marks=dict.fromkeys(marks, ~false)),
      None if layout is RowLayout.ARBITRARY else (first, last),
      length,
    )

  @classmethod
  def of(
    cls,
    tokens: Tokens,
    block: int,
    layout: RowLayout,
    numbers: Any = None,
    num_slots: int | None = None,
  ) -> 'Bounds':
    """Returns the bounds of these tokens; those of positions are static in a CONTIGUOUS layout.

    Args:
      tokens: metadata, arrays [#batch, length, ...].
      block: tokens per block; the last block may have fewer.
      layout: common layout of queries and keys (see `common_layout`).
      numbers: number of each block in the complete row, if the tokens are some blocks of a row.
      num_slots: number of tokens of the complete row; None: `tokens` is the row.
    """
    length = tokens.positions.shape[1]
    first, last = _slots(length, block)
    # The last block is padded with the last token, which does not change its bounds.
    index = np.minimum(np.arange(first.size * block), length - 1)

    def blocks(x):
      return x[:, index].reshape(x.shape[0], first.size, block, *x.shape[2:])

    blocked = jax.tree.map(blocks, tokens)
    high = jax.tree.map(lambda x: x.max(2), blocked)
    if blocked.segments is not None:
      present = blocked.segments + (blocked.segments == 0) * np.int32(np.iinfo(np.int32).max)
      blocked = dataclasses.replace(blocked, segments=present)
    low = jax.tree.map(lambda x: x.min(2), blocked)
    if numbers is not None:
      first = numbers[None] * block
      last = first + block - 1
    if layout is RowLayout.CONTIGUOUS:
      low = dataclasses.replace(low, positions=first)
      high = dataclasses.replace(high, positions=last)
    slots = None if layout is RowLayout.ARBITRARY else (first, last)
    return cls(low, high, slots, num_slots or length)

  def map(self, function: Callable[[Any], Any]) -> 'Bounds':
    """Returns the bounds with `function` applied to each array."""
    low, high, slots = jax.tree.map(function, (self.low, self.high, self.slots))
    return Bounds(low, high, slots, self.num_slots)

  def as_queries(self) -> 'Bounds':
    """Returns a view with arrays [#batch, blocks, 1, ...], which broadcast against `as_keys`."""
    return self.map(lambda x: x[:, :, None])

  def as_keys(self) -> 'Bounds':
    """Returns a view with arrays [#batch, 1, blocks, ...]."""
    return self.map(lambda x: x[:, None])


def within(interval: Interval, q: Bounds, k: Bounds) -> Tiles:
  """Classifies tiles by whether the interval contains none or all of their offsets q - k."""
  lowest, highest = interval
  empty, full = np.bool_(False), np.bool_(True)
  first = q.low.positions - k.high.positions
  last = q.high.positions - k.low.positions
  if lowest is not None:
    empty, full = empty | (last < lowest), full & (first >= lowest)
  if highest is not None:
    empty, full = empty | (first > highest), full & (last <= highest)
  return Tiles(empty, full)


def exact(allows: Callable[[Tokens, Tokens], Any], q: Bounds, k: Bounds) -> Tiles:
  """Classifies tiles exactly by a predicate of offsets q - k, from bounds with slots.

  A tile contains every offset between its smallest and its largest.
  """
  assert q.slots is not None and k.slots is not None
  (q_first, q_last), (k_first, k_last) = q.slots, k.slots
  lowest, highest = 1 - k.num_slots, q.num_slots - 1
  offsets = Tokens(np.arange(lowest, highest + 1))
  allowed = np.asarray(allows(offsets, Tokens(np.zeros(1, int))))
  below: np.ndarray | jax.Array = np.concatenate([[0], np.cumsum(allowed, dtype=np.int32)])
  first, last = q_first - k_last, q_last - k_first
  if isinstance(first, jax.Array):
    below = jnp.asarray(below)
  count = below[last + 1 - lowest] - below[first - lowest]
  return Tiles(count == 0, count == last - first + 1)


def intersection(a: Interval, b: Interval) -> Interval:
  """Returns the intersection of two intervals."""
  lowest = max((x for x in (a[0], b[0]) if x is not None), default=None)
  highest = min((x for x in (a[1], b[1]) if x is not None), default=None)
  return _EMPTY if _is_above(lowest, highest) else (lowest, highest)


def union(a: Interval, b: Interval) -> Interval | None:
  """Returns the union of two intervals; None if there is a gap between them."""
  if _EMPTY in (a, b):
    return b if a == _EMPTY else a
  if _is_above(a[0], b[1], 1) or _is_above(b[0], a[1], 1):
    return None
  lowest = None if a[0] is None or b[0] is None else min(a[0], b[0])
  highest = None if a[1] is None or b[1] is None else max(a[1], b[1])
  return lowest, highest


def complement(interval: Interval) -> Interval | None:
  """Returns the complement of an interval; None if it is not an interval."""
  match interval:
    case (None, None):
      return _EMPTY
    case (1, 0):
      return None, None
    case (None, int(highest)):
      return highest + 1, None
    case (int(lowest), None):
      return None, lowest - 1
  return None


def _is_above(lowest: int | None, highest: int | None, by: int = 0) -> bool:
  return lowest is not None and highest is not None and lowest > highest + by


def _slots(length: int, block: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the first and last slot of each block, [1, blocks]."""
  first = np.arange(0, length, block)[None]
  return first, np.minimum(first + block, length) - 1
