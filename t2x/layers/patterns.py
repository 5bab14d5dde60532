"""Attention patterns: who may see whom, as a small algebra of predicates over pairs of positions.

`Causal() & Window(256)` or `Window(64, dilation=2) | Global(16)` is written once and gives the dense
mask (the reference), the schedule of tiles that blockwise kernels skip by, and the picture. Windows
and global tokens are Longformer's (Beltagy et al. 2020, arXiv:2004.05150), strided and banded
patterns Sparse Transformer's (Child et al. 2019, arXiv:1904.10509), the seen prefix is T5's prefix
LM (Raffel et al. 2020, arXiv:1910.10683).
"""

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int8

from t2x.errors import UserError
from t2x.layers.base import Tokens
from t2x.ranges import Size

__all__ = [
  'FULL',
  'PARTIAL',
  'SKIP',
  'And',
  'Blocks',
  'Causal',
  'Full',
  'Global',
  'Not',
  'Or',
  'Pattern',
  'Prefix',
  'Window',
  'attention_mask',
  'check_marks',
  'visible',
]

SKIP, PARTIAL, FULL = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class _Grid:
  """The tiles of an attention matrix: first and last position of each, as columns and rows."""

  q_first: np.ndarray
  q_last: np.ndarray
  k_first: np.ndarray
  k_last: np.ndarray
  packed: bool
  has_prefix: bool

  @classmethod
  def of(cls, q_len: int, k_len: int, q_block: int, k_block: int, packed: bool, has_prefix: bool):
    q, k = np.arange(0, q_len, q_block)[:, None], np.arange(0, k_len, k_block)[None, :]
    q_last, k_last = np.minimum(q + q_block, q_len) - 1, np.minimum(k + k_block, k_len) - 1
    return cls(q, q_last, k, k_last, packed, has_prefix)

  def fill(self, full: Any, skip: Any) -> np.ndarray:
    """Verdicts: FULL where `full`, SKIP where `skip`, PARTIAL elsewhere."""
    verdicts = np.full((len(self.q_first), self.k_first.shape[1]), PARTIAL, np.int8)
    verdicts[np.broadcast_to(skip, verdicts.shape)] = SKIP
    verdicts[np.broadcast_to(full, verdicts.shape)] = FULL
    return verdicts


class Pattern(abc.ABC):
  """A predicate over (query position, key position): may the query see the key?

  Patterns are immutable, hashable and compare by value; they are never traced. Combine them with
  `&`, `|` and `~`.
  """

  @abc.abstractmethod
  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    """True where the query may see the key.

    Args:
      q_pos: integer array (NumPy or JAX) of query positions.
      k_pos: integer array of key positions; the two broadcast against each other.
      prefix: bool array, broadcastable to `k_pos`: is the key in the prefix? None: no key is.
    """

  @property
  @abc.abstractmethod
  def relative(self) -> bool:
    """Whether the answer depends on `q_pos - k_pos` alone."""

  @property
  def reads(self) -> frozenset[str]:
    """The marks of `Tokens` that it depends on ('prefix')."""
    return frozenset()

  def is_causal(self, length: int) -> bool:
    """Whether no query of a row of `length` tokens sees a later key, where no token has a mark."""
    block = max(256, length // 2048)
    schedule = self.schedule(length, length, block, block, has_prefix=False)
    for i, j in np.argwhere(schedule != SKIP):
      q = np.arange(i * block, min((i + 1) * block, length))[:, None]
      k = np.arange(j * block, min((j + 1) * block, length))[None, :]
      if j >= i and np.any(self.allows(q, k) & (k > q)):
        return False
    return True

  def schedule(
    self,
    q_len: int,
    k_len: int,
    q_block: int,
    k_block: int,
    *,
    packed: bool = False,
    has_prefix: bool = True,
  ) -> Int8[np.ndarray, 'q_blocks k_blocks']:
    """What each tile of the attention matrix needs: 0 skip, 1 partly masked, 2 fully seen.

    Never wrong, at times PARTIAL where SKIP or FULL would do. Exact for relative patterns, Blocks
    and Global. Costs O(lengths + tiles): pairs are never enumerated.

    Args:
      packed: positions restart in each segment of a row. The schedule then holds for pairs of the
        same segment, and only what is relative can be known of them.
      has_prefix: False when no key is in a prefix, whatever the pattern.
    """
    return self._verdicts(_Grid.of(q_len, k_len, q_block, k_block, packed, has_prefix))

  def mask(self, q_len: int, k_len: int, prefix: Any = None) -> Bool[np.ndarray, 'q_len k_len']:
    """The dense mask for positions counted from 0; `prefix`: bool, one for each key, or None."""
    return np.asarray(self.allows(np.arange(q_len)[:, None], np.arange(k_len)[None, :], prefix))

  def _verdicts(self, grid: _Grid) -> np.ndarray:
    return _by_offset(self, grid) if self.relative else self._by_interval(grid)

  def _by_interval(self, grid: _Grid) -> np.ndarray:
    return grid.fill(False, False)

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

  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    return (q_pos == q_pos) & (k_pos == k_pos)


@dataclasses.dataclass(frozen=True)
class Causal(Pattern):
  """A query sees itself and what came before."""

  relative = True

  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    return k_pos <= q_pos


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

  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    near = abs(q_pos - k_pos) < self.size * self.dilation
    return near if self.dilation == 1 else near & ((q_pos - k_pos) % self.dilation == 0)


@dataclasses.dataclass(frozen=True)
class Prefix(Pattern):
  """Everybody sees the keys of the prefix (`Tokens.prefix`); nobody sees another key."""

  relative = False
  reads = frozenset({'prefix'})

  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    if prefix is None:
      return (q_pos != q_pos) | (k_pos != k_pos)
    return Full().allows(q_pos, k_pos) & prefix

  def _by_interval(self, grid: _Grid) -> np.ndarray:
    return grid.fill(False, not grid.has_prefix)


@dataclasses.dataclass(frozen=True)
class Global(Pattern):
  """The first `n` positions see, and are seen by, all."""

  n: Size
  relative = False

  def __post_init__(self):
    _require(self.n >= 1, f'Global: n must be at least 1, not {self.n}')

  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    return (q_pos < self.n) | (k_pos < self.n)

  def _by_interval(self, grid: _Grid) -> np.ndarray:
    if grid.packed:
      return grid.fill(False, False)
    full = (grid.q_last < self.n) | (grid.k_last < self.n)
    return grid.fill(full, (grid.q_first >= self.n) & (grid.k_first >= self.n))


@dataclasses.dataclass(frozen=True)
class Blocks(Pattern):
  """Positions are cut into blocks of `size`; a query sees the keys of its own block."""

  size: Size
  relative = False

  def __post_init__(self):
    _require(self.size >= 1, f'Blocks: size must be at least 1, not {self.size}')

  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    return q_pos // self.size == k_pos // self.size

  def _by_interval(self, grid: _Grid) -> np.ndarray:
    if grid.packed:
      return grid.fill(False, False)
    q_first, q_last = grid.q_first // self.size, grid.q_last // self.size
    k_first, k_last = grid.k_first // self.size, grid.k_last // self.size
    one_block = (q_first == q_last) & (k_first == k_last) & (q_first == k_first)
    return grid.fill(one_block, (q_last < k_first) | (k_last < q_first))


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

  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    return self.left.allows(q_pos, k_pos, prefix) & self.right.allows(q_pos, k_pos, prefix)

  def _by_interval(self, grid: _Grid) -> np.ndarray:
    return np.minimum(self.left._verdicts(grid), self.right._verdicts(grid))

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

  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    return self.left.allows(q_pos, k_pos, prefix) | self.right.allows(q_pos, k_pos, prefix)

  def _by_interval(self, grid: _Grid) -> np.ndarray:
    return np.maximum(self.left._verdicts(grid), self.right._verdicts(grid))

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

  def allows(self, q_pos: Any, k_pos: Any, prefix: Any = None) -> Any:
    return ~self.pattern.allows(q_pos, k_pos, prefix)

  def _by_interval(self, grid: _Grid) -> np.ndarray:
    return (FULL - self.pattern._verdicts(grid)).astype(np.int8)

  def __repr__(self) -> str:
    return f'~{self.pattern}'


def visible(
  pattern: Pattern,
  q_pos: Any,
  k_pos: Any,
  prefix: Any = None,
  q_segments: Any = None,
  k_segments: Any = None,
) -> Any:
  """Bool [batch or 1, q, k] from [batch or 1, q] and [batch or 1, k]: pattern, segments, padding.

  Where only one side has segments, only its padding counts.
  """
  prefix = None if prefix is None else prefix[:, None, :]
  seen = pattern.allows(q_pos[:, :, None], k_pos[:, None, :], prefix)
  if k_segments is not None:
    seen = seen & (k_segments != 0)[:, None, :]
  if q_segments is not None:
    seen = seen & (q_segments != 0)[:, :, None]
  if q_segments is not None and k_segments is not None:
    seen = seen & (q_segments[:, :, None] == k_segments[:, None, :])
  return seen


def attention_mask(
  pattern: Pattern, q: Tokens, k: Tokens
) -> Bool[Array, '#batch 1 q_len k_len'] | None:
  """The dense mask: the pattern, within one segment, no padding. None where all see all.

  Raises:
    UserError: as `check_marks`.
  """
  check_marks(pattern, k)
  if pattern == Full() and q.segments is None and k.segments is None:
    return None
  prefix = k.marks.get('prefix')
  seen = visible(pattern, q.positions, k.positions, prefix, q.segments, k.segments)
  return jnp.asarray(seen)[:, None]


def check_marks(pattern: Pattern, k_tokens: Tokens) -> None:
  """Raises UserError where a pattern reads a mark that the keys' tokens do not carry."""
  if 'prefix' in pattern.reads and 'prefix' not in k_tokens.marks:
    raise UserError(
      f"the pattern {pattern} reads Tokens.marks['prefix'], which this batch does not have, so that "
      'Prefix() would hide every token: use a task that marks a prefix, or leave Prefix() out'
    )


def _by_offset(pattern: Pattern, grid: _Grid) -> np.ndarray:
  """Exact verdicts of a relative pattern: a tile holds every offset between its two corners."""
  lowest, highest = -int(grid.k_last.max(initial=0)), int(grid.q_last.max(initial=0))
  seen = np.asarray(pattern.allows(np.arange(lowest, highest + 1), 0))
  below = np.concatenate([[0], np.cumsum(seen)])
  first, last = grid.q_first - grid.k_last, grid.q_last - grid.k_first
  count = below[last + 1 - lowest] - below[first - lowest]
  return grid.fill(count == last - first + 1, count == 0)


def _require(condition: bool, message: str) -> None:
  if not condition:
    raise UserError(message)
