"""Attention patterns: who may see whom, as a small algebra of predicates over pairs of positions.

`Causal() & Window(256)` or `Window(64, dilation=2) | Global(16)` is written once and gives the dense
mask (the reference), the schedule of tiles that blockwise kernels skip by, and the picture. Windows
and global tokens are Longformer's (Beltagy et al. 2020, arXiv:2004.05150), strided and banded
patterns Sparse Transformer's (Child et al. 2019, arXiv:1904.10509), the seen prefix is T5's prefix
LM (Raffel et al. 2020, arXiv:1910.10683), selected tokens are ETC's (Ainslie et al. 2020,
arXiv:2004.08483).
"""

import abc
import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Int8

from t2x.errors import UserError
from t2x.layers.base import RowLayout, Tokens
from t2x.layers.tiles import SKIP, Bounds, Interval, Tiles, complement, intersection, union, within
from t2x.ranges import Size, Text


class Pattern(abc.ABC):
  """A predicate over (query token, key token): may the query see the key?

  Patterns are immutable, hashable and compare by value; they are never traced. Combine them with
  `&`, `|` and `~`.
  """

  @property
  def relative(self) -> bool:
    """Whether the answer depends on q.positions - k.positions only."""
    return False

  @property
  def reads(self) -> frozenset[str]:
    """The fields of `Tokens` that the answer depends on; a mark is 'marks.<name>'."""
    return frozenset({'positions'})

  @abc.abstractmethod
  def allows(self, q: Tokens, k: Tokens) -> Any:
    """True where the query may see the key.

    Args:
      q: metadata of queries, as NumPy or JAX arrays. Absent marks are false.
      k: metadata of keys; its arrays and those of `q` broadcast against each other
        (`Tokens.as_queries`, `Tokens.as_keys`).
    """

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    """Decides whether tiles are empty or full from bounds that broadcast as in `allows`.

    By default from `offsets()`; without them every tile is partial.
    """
    interval = self.offsets()
    if interval is None:
      return Tiles(np.bool_(False), np.bool_(False))
    return within(interval, q, k)

  def offsets(self) -> Interval | None:
    """The interval of q - k that is seen, where the pattern is one; equal patterns have equal ones."""
    return None

  def tiles(self, q: Bounds, k: Bounds) -> Tiles:
    """As `tile`; exact where the pattern is relative and offsets are those of slots."""
    if self.relative and q.slots is not None and k.slots is not None:
      return _by_offset(self, q.slots, k.slots)
    return self.tile(q, k)

  def is_causal(self, length: int) -> bool:
    """Whether no query of a row of `length` tokens sees a later key, where no token has a mark.

    False where this depends on the data (`order`, `coords`).
    """
    if self.reads & {'coords', 'order'}:
      return False
    block = max(256, length // 2048)
    schedule = self.schedule(length, length, block, block, has_marks=False)
    for i, j in np.argwhere(schedule != SKIP):
      q = np.arange(i * block, min((i + 1) * block, length))[:, None]
      k = np.arange(j * block, min((j + 1) * block, length))[None, :]
      if j >= i and np.any(self.allows(Tokens(q), Tokens(k)) & (k > q)):
        return False
    return True

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
    """What is known before run time of each tile: 0 skip, 1 partly masked, 2 fully seen.

    Never wrong, at times PARTIAL where SKIP or FULL would do. Exact for relative patterns, Blocks
    and Global in a CONTIGUOUS layout. Costs O(lengths + tiles): pairs are never enumerated.

    Args:
      layout: of queries and keys. PACKED: the schedule holds for pairs of the same segment, and only
        what is relative can be known of them.
      has_marks: False when no token has a mark, whatever the pattern.
    """
    marks = marks_of(self) if has_marks else ()
    q, k = (
      Bounds.static(length, block, layout, marks)
      for length, block in ((q_len, q_block), (k_len, k_block))
    )
    tiles = self.tiles(q.as_queries(), k.as_keys())
    return tiles.codes(1, -(-q_len // q_block), -(-k_len // k_block))[0]

  def mask(self, q: int | Tokens, k: int | Tokens) -> Bool[np.ndarray, 'q_len k_len']:
    """The dense mask for tokens with NumPy arrays [1, length]; a length is a row without marks."""
    q, k = (Tokens(np.arange(x)[None]) if isinstance(x, int) else x for x in (q, k))
    return np.asarray(self.allows(q.as_queries(), k.as_keys()))[0]

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
  """A query sees itself and what came before."""

  relative = True

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return k.positions <= q.positions

  def offsets(self) -> Interval:
    return 0, None


@dataclasses.dataclass(frozen=True)
class Window(Pattern):
  """A query sees the keys less than `size` steps of `dilation` away, on both sides.

  With Causal: `size` keys, its own position among them, as in GPT-Neo and Mistral.
  """

  size: Size
  dilation: Size = 1
  relative = True

  def __post_init__(self):
    _require(self.size >= 1, f'Window: size must be at least 1, not {self.size}')
    _require(self.dilation >= 1, f'Window: dilation must be at least 1, not {self.dilation}')

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
  """Everybody sees the keys that have the mark 'prefix'; nobody sees another key."""

  reads = frozenset({'marks.prefix'})

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return Full().allows(q, k) & _marked(k, 'prefix')

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    return Tiles(~_marked(k.high, 'prefix'), _marked(k.low, 'prefix'))


@dataclasses.dataclass(frozen=True)
class Marked(Pattern):
  """The tokens that have the mark `name` see, and are seen by, all."""

  name: Text

  @property
  def reads(self) -> frozenset[str]:
    return frozenset({f'marks.{self.name}'})

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return _marked(q, self.name) | _marked(k, self.name)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    full = _marked(q.low, self.name) | _marked(k.low, self.name)
    return Tiles(~(_marked(q.high, self.name) | _marked(k.high, self.name)), full)


@dataclasses.dataclass(frozen=True)
class Global(Pattern):
  """The first `n` positions see, and are seen by, all."""

  n: Size

  def __post_init__(self):
    _require(self.n >= 1, f'Global: n must be at least 1, not {self.n}')

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return (q.positions < self.n) | (k.positions < self.n)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    full = (q.high.positions < self.n) | (k.high.positions < self.n)
    return Tiles((q.low.positions >= self.n) & (k.low.positions >= self.n), full)


@dataclasses.dataclass(frozen=True)
class Blocks(Pattern):
  """Positions are cut into blocks of `size`; a query sees the keys of its own block."""

  size: Size

  def __post_init__(self):
    _require(self.size >= 1, f'Blocks: size must be at least 1, not {self.size}')

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return q.positions // self.size == k.positions // self.size

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    q_first, q_last = q.low.positions // self.size, q.high.positions // self.size
    k_first, k_last = k.low.positions // self.size, k.high.positions // self.size
    one_block = (q_first == q_last) & (k_first == k_last) & (q_first == k_first)
    return Tiles((q_last < k_first) | (k_last < q_first), one_block)


@dataclasses.dataclass(frozen=True, repr=False)
class And(Pattern):
  """What both patterns let see."""

  left: Pattern
  right: Pattern

  @property
  def relative(self) -> bool:
    return self.left.relative and self.right.relative

  @property
  def reads(self) -> frozenset[str]:
    return self.left.reads | self.right.reads

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return self.left.allows(q, k) & self.right.allows(q, k)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    left, right = self.left.tiles(q, k), self.right.tiles(q, k)
    return Tiles(left.empty | right.empty, left.full & right.full)

  def offsets(self) -> Interval | None:
    left, right = self.left.offsets(), self.right.offsets()
    return None if left is None or right is None else intersection(left, right)

  def __repr__(self) -> str:
    return f'({self.left} & {self.right})'


@dataclasses.dataclass(frozen=True, repr=False)
class Or(Pattern):
  """What either pattern lets see."""

  left: Pattern
  right: Pattern

  @property
  def relative(self) -> bool:
    return self.left.relative and self.right.relative

  @property
  def reads(self) -> frozenset[str]:
    return self.left.reads | self.right.reads

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return self.left.allows(q, k) | self.right.allows(q, k)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    left, right = self.left.tiles(q, k), self.right.tiles(q, k)
    return Tiles(left.empty & right.empty, left.full | right.full)

  def offsets(self) -> Interval | None:
    left, right = self.left.offsets(), self.right.offsets()
    return None if left is None or right is None else union(left, right)

  def __repr__(self) -> str:
    return f'({self.left} | {self.right})'


@dataclasses.dataclass(frozen=True, repr=False)
class Not(Pattern):
  """What the pattern does not let see."""

  pattern: Pattern

  @property
  def relative(self) -> bool:
    return self.pattern.relative

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


def marks_of(pattern: Pattern) -> list[str]:
  """The names of the marks that a pattern reads."""
  return sorted(name.removeprefix('marks.') for name in pattern.reads if name.startswith('marks.'))


def _marked(tokens: Tokens, name: str) -> Any:
  """The mark of each token; false where the tokens do not have it."""
  return tokens.marks.get(name, tokens.positions != tokens.positions)


def _by_offset(pattern: Pattern, q: Any, k: Any) -> Tiles:
  """Exact verdicts of a relative pattern: a tile holds every offset between its two corners.

  `q` and `k` are the first and last slots of blocks, as NumPy arrays that broadcast.
  """
  (q_first, q_last), (k_first, k_last) = q, k
  lowest, highest = -int(k_last.max(initial=0)), int(q_last.max(initial=0))
  offsets = Tokens(np.arange(lowest, highest + 1))
  seen = np.asarray(pattern.allows(offsets, Tokens(np.zeros(1, int))))
  below = np.concatenate([[0], np.cumsum(seen)])
  first, last = q_first - k_last, q_last - k_first
  count = below[last + 1 - lowest] - below[first - lowest]
  return Tiles(count == 0, count == last - first + 1)


def _require(condition: bool, message: str) -> None:
  if not condition:
    raise UserError(message)
