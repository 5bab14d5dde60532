"""Tiles of the attention matrix: bounds of blocks of tokens, and what a pattern decides from them.

Everything works on NumPy and on JAX arrays: a verdict is a NumPy array where it follows from what is known
before run time (lengths, layout), and a traced one where it depends on marks, positions or segments.
"""

import dataclasses
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int8

from t2x.layers.base import RowLayout, Tokens

SKIP, PARTIAL, FULL = 0, 1, 2

# Lowest and highest offset q - k; None: unbounded.
Interval = tuple[int | None, int | None]
_NOTHING: Interval = (1, 0)


class Tiles(NamedTuple):
  """Verdicts on tiles: neither `empty` nor `full` is a tile that needs a mask.

  Attributes:
    empty: whether no query of the tile sees a key of it; never true where one does.
    full: whether every query sees every key; never true where one does not.
  """

  empty: Any
  full: Any

  @property
  def is_static(self) -> bool:
    """Whether the verdicts are known before run time."""
    return not isinstance(self.empty, jax.Array) and not isinstance(self.full, jax.Array)

  def codes(self, *shape: int) -> Int8[np.ndarray, '...']:
    """SKIP, PARTIAL or FULL for each tile of an array of this shape; of static verdicts."""
    codes = np.full(shape, PARTIAL, np.int8)
    codes[np.broadcast_to(self.full, shape)] = FULL
    codes[np.broadcast_to(self.empty, shape)] = SKIP
    return codes


@dataclasses.dataclass(frozen=True)
class Bounds:
  """Minima and maxima of the token metadata of each block of a row.

  Attributes:
    low: minimum of each field over the block, [#batch, blocks, ...]; of a mark: whether all tokens have
      it; of segments: the minimum over what is not padding.
    high: maximum of each field; of a mark: whether any token has it.
    slots: first and last slot of each block as NumPy arrays, where positions of queries and keys differ
      as their slots do; else None.
  """

  low: Tokens
  high: Tokens
  slots: tuple[np.ndarray, np.ndarray] | None = None

  @classmethod
  def static(
    cls, length: int, block: int, layout: RowLayout, marks: Collection[str] = ()
  ) -> 'Bounds':
    """The bounds that are known before run time, when tokens may have these marks and no others."""
    first, last = _slots(length, block)
    zero, largest = np.zeros_like(first), np.full_like(last, np.iinfo(np.int32).max)
    low, high = {
      RowLayout.CONTIGUOUS: (first, last),
      RowLayout.PACKED: (zero, last),
      RowLayout.ARBITRARY: (zero, largest),
    }[layout]
    some = zero.astype(bool)
    return cls(
      Tokens(low, marks=dict.fromkeys(marks, some)),
      Tokens(high, marks=dict.fromkeys(marks, ~some)),
      None if layout is RowLayout.ARBITRARY else (first, last),
    )

  @classmethod
  def of(cls, tokens: Tokens, block: int, layout: RowLayout) -> 'Bounds':
    """The bounds of these tokens, static for the positions of a CONTIGUOUS layout.

    Args:
      tokens: arrays [#batch, length, ...].
      block: tokens in a block; the last one may have fewer.
      layout: what is static about queries and keys together (see `common_layout`).
    """
    length = tokens.positions.shape[1]
    first, last = _slots(length, block)
    # The last token fills up the last block, which leaves its bounds as they are.
    index = np.minimum(np.arange(first.size * block), length - 1)

    def blocks(x):
      return x[:, index].reshape(x.shape[0], first.size, block, *x.shape[2:])

    cut = jax.tree.map(blocks, tokens)
    high = jax.tree.map(lambda x: x.max(2), cut)
    if cut.segments is not None:
      present = cut.segments + (cut.segments == 0) * np.int32(np.iinfo(np.int32).max)
      cut = dataclasses.replace(cut, segments=present)
    low = jax.tree.map(lambda x: x.min(2), cut)
    if layout is RowLayout.CONTIGUOUS:
      low = dataclasses.replace(low, positions=first)
      high = dataclasses.replace(high, positions=last)
    return cls(low, high, None if layout is RowLayout.ARBITRARY else (first, last))

  def map(self, function: Any) -> 'Bounds':
    """The bounds with `function` applied to each array, as for views or a selection of blocks."""
    return Bounds(*jax.tree.map(function, (self.low, self.high, self.slots)))

  def as_queries(self) -> 'Bounds':
    """A view whose arrays have one more dimension, for the blocks of keys."""
    return self.map(lambda x: x[:, :, None])

  def as_keys(self) -> 'Bounds':
    """A view whose arrays have one more dimension, for the blocks of queries."""
    return self.map(lambda x: x[:, None])


def within(interval: Interval, q: Bounds, k: Bounds) -> Tiles:
  """Verdicts from an interval of offsets and the least and the greatest offset of each tile."""
  lowest, highest = interval
  empty, full = np.bool_(False), np.bool_(True)
  first = q.low.positions - k.high.positions
  last = q.high.positions - k.low.positions
  if lowest is not None:
    empty, full = empty | (last < lowest), full & (first >= lowest)
  if highest is not None:
    empty, full = empty | (first > highest), full & (last <= highest)
  return Tiles(empty, full)


def intersection(a: Interval, b: Interval) -> Interval:
  """The offsets in both intervals."""
  lowest = max((x for x in (a[0], b[0]) if x is not None), default=None)
  highest = min((x for x in (a[1], b[1]) if x is not None), default=None)
  return _NOTHING if _is_above(lowest, highest) else (lowest, highest)


def union(a: Interval, b: Interval) -> Interval | None:
  """The offsets in either interval; None where there is a gap between the two."""
  if _NOTHING in (a, b):
    return b if a == _NOTHING else a
  if _is_above(a[0], b[1], 1) or _is_above(b[0], a[1], 1):
    return None
  lowest = None if a[0] is None or b[0] is None else min(a[0], b[0])
  highest = None if a[1] is None or b[1] is None else max(a[1], b[1])
  return lowest, highest


def complement(interval: Interval) -> Interval | None:
  """The offsets outside the interval; None where they are not one interval."""
  match interval:
    case (None, None):
      return _NOTHING
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
  """First and last slot of each block, [1, blocks]."""
  first = np.arange(0, length, block)[None]
  return first, np.minimum(first + block, length) - 1
