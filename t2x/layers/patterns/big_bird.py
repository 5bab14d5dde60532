"""Block-sparse attention with random blocks (BigBird: Zaheer et al. 2020, https://arxiv.org/abs/2007.14062)."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32, Int64

from t2x.base.ranges import Natural, Size
from t2x.layers.patterns.algebra import Pattern, require
from t2x.layers.patterns.tiles import Bounds, Tiles
from t2x.layers.tokens import Tokens

__all__ = ['BigBird']


@dataclasses.dataclass(frozen=True)
class BigBird(Pattern):
  """Every query sees a window of blocks, the first and the last block, and some random blocks.

  Queries of the first and the last block see all keys. The random blocks of a block of queries are outside its
  window and differ from the first and the last block; they are the same for all heads, batches and steps.
  Blocks are blocks of positions: packed segments have the same blocks as separate rows, and segments of fewer
  than `length` tokens lack the blocks that they do not reach, such as the last one. For other random blocks per
  layer, give the blocks of a stack other seeds: `Stack.blocks = [@a/Block, @b/Block]` with
  `a/BigBird.seed = 0` and `b/BigBird.seed = 1`.

  Attributes:
    length: maximum number of tokens per row, which ends the last block.
    block: positions per block.
    num_random: random blocks of keys per block of queries (r of the paper).
    window: blocks of keys around a block of queries including its own, an odd number (w of the paper).
    seed: seed of the random blocks.

  Raises:
    UserError: the window is even, or a row has too few blocks; when applied, a row has more than `length` tokens.
  """

  length: Size
  block: Size = 64
  num_random: Natural = 3
  window: Size = 3
  seed: Natural = 0

  def __post_init__(self):
    require(self.block >= 1, f'BigBird.block must be at least 1, not {self.block}')
    require(
      self.window % 2 == 1, f'BigBird.window = {self.window} blocks must be odd, to have a centre'
    )
    needed = self.num_random + self.window + 2
    require(
      self.num_blocks >= needed,
      f'{self} has {self.num_blocks} blocks, which cannot hold {self.num_random} random blocks outside '
      f'the window and the two global blocks: use at least {needed} blocks or Full()',
    )

  @property
  def num_blocks(self) -> int:
    """Number of blocks of a row of `length` tokens."""
    return -(-self.length // self.block)

  def random_blocks(self) -> Int64[np.ndarray, 'blocks num_random']:
    """Returns the random blocks of keys for each block of queries."""
    return _random_blocks(self)

  def allows(self, q: Tokens, k: Tokens) -> Any:
    for tokens in (q, k):
      # Views of queries are [#batch, length, 1], views of keys [#batch, 1, length].
      self._check(int(np.prod(tokens.positions.shape[-2:])))
    return self._allows_blocks(q.positions // self.block, k.positions // self.block)

  def tile(self, q: Bounds, k: Bounds) -> Tiles:
    self._check(max(q.num_slots, k.num_slots))
    counts: np.ndarray | jax.Array = _allowed_counts(self)
    last = self.num_blocks - 1
    # Static bounds of arbitrary positions have no maximum.
    q_first, q_end, k_first, k_end = (
      (bound.positions // self.block).clip(0, last) + offset
      for bound, offset in ((q.low, 0), (q.high, 1), (k.low, 0), (k.high, 1))
    )
    if any(isinstance(x, jax.Array) for x in (q_first, q_end, k_first, k_end)):
      counts = jnp.asarray(counts)
    count = (
      counts[q_end, k_end]
      - counts[q_first, k_end]
      - counts[q_end, k_first]
      + counts[q_first, k_first]
    )
    return Tiles(count == 0, count == (q_end - q_first) * (k_end - k_first))

  def _allows_blocks(self, q: Any, k: Any) -> Any:
    """Returns whether each block of queries sees each block of keys."""
    last = self.num_blocks - 1
    visible = (q == 0) | (q == last) | (k == 0) | (k == last) | (abs(q - k) <= self.window // 2)
    table = self.random_blocks()
    # A static table and traced positions.
    random = (jnp.asarray(table) if isinstance(q, jax.Array) else table)[q]
    for i in range(self.num_random):
      visible = visible | (random[..., i] == k)
    return visible

  def _check(self, length: int) -> None:
    require(
      length <= self.length,
      f'{self} cannot be applied to a row of {length} tokens: set BigBird.length to the length of the rows',
    )


@functools.lru_cache(maxsize=256)
def _random_blocks(pattern: BigBird) -> Int64[np.ndarray, 'blocks num_random']:
  """Chooses the candidates with the smallest random keys."""
  # Raw bits, the only stream of NumPy that does not change between versions: a checkpoint keeps its blocks.
  bits = np.random.PCG64(pattern.seed)
  blocks = np.arange(pattern.num_blocks)
  chosen = np.zeros((len(blocks), pattern.num_random), np.int64)
  for i in blocks:
    keys = bits.random_raw(len(blocks))
    candidates = blocks[
      (abs(blocks - i) > pattern.window // 2) & (blocks > 0) & (blocks < blocks[-1])
    ]
    chosen[i] = np.sort(candidates[np.argsort(keys[candidates])][: pattern.num_random])
  chosen.setflags(write=False)
  return chosen


@functools.lru_cache(maxsize=256)
def _allowed_counts(pattern: BigBird) -> Int32[np.ndarray, 'blocks_1 blocks_1']:
  """Returns the number of allowed pairs in each rectangle of blocks that starts at block (0, 0)."""
  blocks = np.arange(pattern.num_blocks)
  allowed = pattern._allows_blocks(blocks[:, None], blocks[None, :])
  counts = allowed.cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32)
  counts = np.pad(counts, ((1, 0), (1, 0)))
  counts.setflags(write=False)
  return counts
