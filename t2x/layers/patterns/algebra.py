"""Attention patterns: predicates over (query, key) pairs, combined with `&`, `|` and `~`.

A pattern such as `Causal() & Window(256)` or `Window(64, dilation=2) | Global(16)` defines the dense mask
(the reference), the tiles that blockwise kernels skip, and the picture of the pattern. Windows
and global tokens are from Longformer (Beltagy et al. 2020, arXiv:2004.05150), the prefix from T5's prefix LM
(Raffel et al. 2020, arXiv:1910.10683), marked tokens from ETC (Ainslie et al. 2020, arXiv:2004.08483).
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Bool, Int8

from t2x.base.errors import UserError
from t2x.base.ranges import Size, Text
from t2x.layers.patterns.tiles import (
  FULL,
  SKIP,
  Bounds,
  Interval,
  Tiles,
  complement,
  exact,
  intersection,
  union,
  within,
)
from t2x.layers.tokens import RowLayout, Tokens

__all__ = ['And', 'Causal', 'Full', 'Global', 'Marked', 'Not', 'Or', 'Pattern', 'Prefix', 'Window']

# Fields of `Tokens` that depend on the data, not on the length of a row.
OF_DATA = frozenset({'coords', 'grid', 'order'})


class Pattern(abc.ABC):
  """Predicate over (query token, key token): whether the query may see the key.

  Patterns are immutable, hashable and compare by value; they are never traced. Combine them with `&`, `|`
  and `~`.
  """

  @property
  def relative(self) -> bool:
    """True if the predicate depends only on q.positions - k.positions."""
    return False

  @property
  def reads(self) -> frozenset[str]:
    """Fields of `Tokens` that the predicate depends on; a mark is 'marks.<name>'."""
    return frozenset({'positions'})

  @property
  def period(self) -> tuple[int, int] | None:
    """(period, start) of a periodic pattern; None: unknown.

    From position `start` on, adding the period to the positions of query and key does not change the predicate,
    for tokens without marks.
    """
    return (1, 0) if self.relative else None

  @abc.abstractmethod
  def allows(self, q: Tokens, k: Tokens) -> Any:
    """Returns whether each query may see each key, as a boolean array.

    Args:
      q: metadata of queries, as NumPy or JAX arrays. Absent marks are false.
      k: metadata of keys, with arrays that broadcast against those of `q` (`query_key_views`).
    """

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    """Decides from bounds, which broadcast as in `allows`, whether tiles are empty or full.

    The default uses `offsets()`; if it returns None, every tile is partial.
    """
    interval = self.offsets()
    if interval is None:
      return Tiles(np.bool_(False), np.bool_(False))
    return within(interval, q, k)

  def offsets(self) -> Interval | None:
    """Returns the interval of q - k that the pattern allows; None if one interval does not define the pattern.

    Equal patterns return equal intervals.
    """
    return None

  def tiles(self, q: Bounds, k: Bounds) -> Tiles:
    """Decides as `tile` does, but exactly for a relative pattern and bounds with slots."""
    if self.relative and q.slots is not None and k.slots is not None:
      return exact(self.allows, q, k)
    return self.tile(q, k)

  def is_causal(self, length: int, marks: Collection[str] = ()) -> bool:
    """Returns whether no query in a row of `length` tokens sees a later key.

    Returns False for patterns that depend on the data (`order`, `coords`, `grid`).

    Args:
      length: number of tokens.
      marks: names of all marks that a token may have.
    """
    if self.reads & OF_DATA:
      return False
    lowest, _ = self.offsets() or (None, None)
    if lowest is not None and lowest >= 0:
      return True
    marks = [name for name in marks if f'marks.{name}' in self.reads]
    for _, q, k in self._shown_tiles(length, has_marks=bool(marks)):
      if q[0, 0] > k[0, -1]:
        continue
      for q_marks, k_marks in itertools.product(_combinations(marks), repeat=2):
        if np.any(self.allows(Tokens(q, marks=q_marks), Tokens(k, marks=k_marks)) & (k > q)):
          return False
    return True

  def visible(self, length: int) -> int:
    """Counts the visible (query, key) pairs of a row of one segment without marks.

    Patterns that depend on the data (`order`, `coords`, `grid`) count as if all pairs were visible.
    """
    if self.reads & OF_DATA:
      return length**2
    # One period of queries is cheaper than the tiles, unless it is about as long as the row.
    if self.period is not None and 8 * sum(self.period) <= max(length, 8):
      period, start = self.period
      first = np.arange(min(start, length))[:, None]
      others = np.arange(start, length)[:, None]
      total = np.sum(self.allows(Tokens(first), Tokens(np.arange(length)[None])))
      total += np.sum(self.allows(Tokens(others), Tokens(first.T)))
      return int(total) + self._visible_from(start, length - start, period)
    return sum(
      q.size * k.size if code == FULL else int(np.sum(self.allows(Tokens(q), Tokens(k))))
      for code, q, k in self._shown_tiles(length, has_marks=False)
    )

  def _visible_from(self, start: int, length: int, period: int) -> int:
    """Counts as `visible` does, for `length` positions from `start` on, from one period of queries."""
    offsets = np.arange(1 - length, length, dtype=np.int32)
    # At each offset, first and end (exclusive) of the queries with a key, from `start`.
    first, end = np.maximum(offsets, 0), np.minimum(length + offsets, length)
    total = 0
    for residue in range(min(period, length)):
      query = start + residue + -(-length // period) * period
      shown = self.allows(Tokens(np.full(1, query, np.int32)), Tokens(query - offsets))
      queries = (residue - first) // period - (residue - end) // period
      total += int(queries.sum(where=shown, dtype=np.int64))
    return total

  def _shown_tiles(self, length: int, has_marks: bool) -> Iterator[tuple[int, Any, Any]]:
    """Yields the class, queries and keys of each tile that is not SKIP."""
    block = max(256, length // 2048)
    schedule = self.schedule(length, length, block, block, has_marks=has_marks)
    for i, j in np.argwhere(schedule != SKIP):
      q, k = (np.arange(n * block, min((n + 1) * block, length)) for n in (i, j))
      yield schedule[i, j], q[:, None], k[None, :]

  def schedule(
    self,
    q_len: int,
    k_len: int,
    q_block: int,
    k_block: int,
    *,
    layout: RowLayout = RowLayout.CONTIGUOUS,
    has_marks: bool = True,
  ) -> Int8[np.ndarray, 'q_blocks k_blocks']:
    """Classifies tiles before run time: 0 skip, 1 partly masked, 2 not masked.

    The schedule is conservative: a tile can be PARTIAL although SKIP or FULL would be correct. It is exact
    for relative patterns, Blocks and Global in a CONTIGUOUS layout. The cost is O(lengths + tiles), because pairs are
    not enumerated.

    Args:
      q_len: number of queries.
      k_len: number of keys.
      q_block: queries per tile.
      k_block: keys per tile.
      layout: layout of queries and keys. PACKED: the schedule is valid for pairs of the same segment, and
        only relative patterns are classified.
      has_marks: False if no token has a mark.
    """
    marks = mark_names(self) if has_marks else ()
    q, k = (
      Bounds.static(length, block, layout, marks)
      for length, block in ((q_len, q_block), (k_len, k_block))
    )
    tiles = self.tiles(q.as_queries(), k.as_keys())
    return tiles.codes(1, -(-q_len // q_block), -(-k_len // k_block))[0]

  def mask(self, q: int | Tokens, k: int | Tokens) -> Bool[np.ndarray, 'q_len k_len']:
    """Returns the dense mask.

    Args:
      q: metadata of the queries, NumPy arrays [1, length], or the length of a row without marks.
      k: metadata of the keys, as `q`.
    """
    q, k = (Tokens(np.arange(x)[None]) if isinstance(x, int) else x for x in (q, k))
    return np.asarray(self.allows(*query_key_views(q, k)))[0]

  def __and__(self, other: 'Pattern') -> 'Pattern':
    if not isinstance(other, Pattern):
      return NotImplemented
    if Full() in (self, other):
      return self if other == Full() else other
    return And(self, other)

  def __or__(self, other: 'Pattern') -> 'Pattern':
    return Or(self, other) if isinstance(other, Pattern) else NotImplemented

  def __invert__(self) -> 'Pattern':
    return Not(self)


@dataclasses.dataclass(frozen=True)
class Full(Pattern):
  """Every query sees every key."""

  relative = True
  reads = frozenset()

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return (q.positions == q.positions) & (k.positions == k.positions)

  def offsets(self) -> Interval:
    return None, None


@dataclasses.dataclass(frozen=True)
class Causal(Pattern):
  """Every query sees its own position and all earlier keys."""

  relative = True

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return k.positions <= q.positions

  def offsets(self) -> Interval:
    return 0, None


@dataclasses.dataclass(frozen=True)
class Window(Pattern):
  """Every query sees the keys less than `size` steps of `dilation` away, on both sides.

  With Causal a query sees `size` keys, including its own position, as in GPT-Neo and Mistral.
  """

  size: Size
  dilation: Size = 1
  relative = True

  def __post_init__(self):
    require(self.size >= 1, f'Window.size must be at least 1, not {self.size}')
    require(self.dilation >= 1, f'Window.dilation must be at least 1, not {self.dilation}')

  def allows(self, q: Tokens, k: Tokens) -> Any:
    offset = q.positions - k.positions
    near = abs(offset) < self.size * self.dilation
    return near if self.dilation == 1 else near & (offset % self.dilation == 0)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    reach = (self.size - 1) * self.dilation
    near = within((-reach, reach), q, k)
    return near if self.offsets() else near._replace(full=np.bool_(False))

  def offsets(self) -> Interval | None:
    reach = self.size - 1
    return (-reach, reach) if self.dilation == 1 or not reach else None


@dataclasses.dataclass(frozen=True)
class Prefix(Pattern):
  """Every query sees the keys with the mark 'prefix' and no other keys."""

  reads = frozenset({'marks.prefix'})
  period = 1, 0

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return Full().allows(q, k) & is_marked(k, 'prefix')

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    return Tiles(~is_marked(k.high, 'prefix'), is_marked(k.low, 'prefix'))


@dataclasses.dataclass(frozen=True)
class Marked(Pattern):
  """Tokens with the mark `name` see all tokens and are seen by all tokens."""

  name: Text
  period = 1, 0

  @property
  def reads(self) -> frozenset[str]:
    return frozenset({f'marks.{self.name}'})

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return is_marked(q, self.name) | is_marked(k, self.name)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    full = is_marked(q.low, self.name) | is_marked(k.low, self.name)
    return Tiles(~(is_marked(q.high, self.name) | is_marked(k.high, self.name)), full)


@dataclasses.dataclass(frozen=True)
class Global(Pattern):
  """The first `n` positions see all tokens and are seen by all tokens."""

  n: Size

  def __post_init__(self):
    require(self.n >= 1, f'Global.n must be at least 1, not {self.n}')

  @property
  def period(self) -> tuple[int, int]:
    return 1, self.n

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return (q.positions < self.n) | (k.positions < self.n)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    full = (q.high.positions < self.n) | (k.high.positions < self.n)
    return Tiles((q.low.positions >= self.n) & (k.low.positions >= self.n), full)


@dataclasses.dataclass(frozen=True, repr=False)
class _Pair(Pattern):
  """Base class of combinations of two patterns."""

  left: Pattern
  right: Pattern
  symbol: ClassVar[str]

  @property
  def relative(self) -> bool:
    return self.left.relative and self.right.relative

  @property
  def period(self) -> tuple[int, int] | None:
    left, right = self.left.period, self.right.period
    if left is None or right is None:
      return None
    return math.lcm(left[0], right[0]), max(left[1], right[1])

  @property
  def reads(self) -> frozenset[str]:
    return self.left.reads | self.right.reads

  def __repr__(self) -> str:
    return f'({self.left} {self.symbol} {self.right})'


@dataclasses.dataclass(frozen=True, repr=False)
class And(_Pair):
  """Every query sees the keys that both patterns allow."""

  symbol = '&'

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return self.left.allows(q, k) & self.right.allows(q, k)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    left, right = self.left.tiles(q, k), self.right.tiles(q, k)
    return Tiles(left.empty | right.empty, left.full & right.full)

  def offsets(self) -> Interval | None:
    left, right = self.left.offsets(), self.right.offsets()
    return None if left is None or right is None else intersection(left, right)


@dataclasses.dataclass(frozen=True, repr=False)
class Or(_Pair):
  """Every query sees the keys that either pattern allows."""

  symbol = '|'

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return self.left.allows(q, k) | self.right.allows(q, k)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    left, right = self.left.tiles(q, k), self.right.tiles(q, k)
    return Tiles(left.empty & right.empty, left.full | right.full)

  def offsets(self) -> Interval | None:
    left, right = self.left.offsets(), self.right.offsets()
    return None if left is None or right is None else union(left, right)


@dataclasses.dataclass(frozen=True, repr=False)
class Not(Pattern):
  """Every query sees the keys that the pattern does not allow."""

  pattern: Pattern

  @property
  def relative(self) -> bool:
    return self.pattern.relative

  @property
  def period(self) -> tuple[int, int] | None:
    return self.pattern.period

  @property
  def reads(self) -> frozenset[str]:
    return self.pattern.reads

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return ~self.pattern.allows(q, k)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    tiles = self.pattern.tiles(q, k)
    return Tiles(tiles.full, tiles.empty)

  def offsets(self) -> Interval | None:
    interval = self.pattern.offsets()
    return None if interval is None else complement(interval)

  def __repr__(self) -> str:
    return f'~{self.pattern}'


def query_key_views(q: Tokens, k: Tokens) -> tuple[Tokens, Tokens]:
  """Returns views of the metadata of queries, [#batch, length, 1, ...], and of keys, [#batch, 1, length, ...], which
  broadcast against each other."""
  return jax.tree.map(lambda x: x[:, :, None], q), jax.tree.map(lambda x: x[:, None], k)


def mark_names(pattern: Pattern) -> list[str]:
  """Returns the names of the marks that a pattern reads."""
  return sorted(name.removeprefix('marks.') for name in pattern.reads if name.startswith('marks.'))


def _combinations(marks: Sequence[str]) -> list[dict[str, Any]]:
  """Returns each set of marks that a token can have, as booleans that broadcast."""
  subsets = itertools.product((np.False_, np.True_), repeat=len(marks))
  return [dict(zip(marks, subset, strict=True)) for subset in subsets]


def is_marked(tokens: Tokens, name: str) -> Any:
  """Returns whether each token has the mark; False if the tokens do not define it."""
  return tokens.marks.get(name, tokens.positions != tokens.positions)


def require(condition: bool, message: str) -> None:
  """Raises UserError unless the condition holds."""
  if not condition:
    raise UserError(message)
