"""Splash attention kernels of patterns: which tiles they visit, and how they mask the visited tiles."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from t2x.layers.attention.kernels.base import ATTENTION_OUTPUT
from t2x.layers.patterns.algebra import Pattern
from t2x.layers.patterns.tiles import SKIP
from t2x.layers.tokens import Tokens


@functools.cache
def kernel(
  pattern: Pattern,
  num_heads: int,
  q_len: int,
  k_len: int,
  q_block: int,
  k_block: int,
  soft_cap: float | None,
  interpret: bool,
) -> Any:
  """Returns the kernel for one row: (q [heads, q_len, head_dim], k [kv_heads, k_len, head_dim],
  v [kv_heads, k_len, v_dim], segments, sink [heads]) -> [heads, q_len, v_dim].

  Cached, because it evaluates the pattern for all pairs, tile by tile, and layers share it.
  """

  def attend(q, k, v, segments, sink):
    ids = None if segments is None else kernels.SegmentIds(*segments)
    return splash(q, k, v, ids, sink)

  sizes = kernels.BlockSizes(
    block_q=q_block,
    block_kv=k_block,
    block_q_dkv=q_block,
    block_kv_dkv=k_block,
    block_q_dq=q_block,
    block_kv_dq=k_block,
  )
  with jax.ensure_compile_time_eval():
    splash = kernels.make_splash_mha(
      masks.MultiHeadMask([mask_of(pattern, q_len, k_len)] * num_heads),
      block_sizes=sizes,
      attn_logits_soft_cap=soft_cap,
      head_shards=1,
      q_seq_shards=1,
      residual_checkpoint_name=ATTENTION_OUTPUT,
      interpret=interpret,
    )
    # Constants of any program, on any device.
    splash = jax.tree.map(np.asarray, splash)
  return attend


def mask_of(pattern: Pattern, q_len: int, k_len: int) -> masks.Mask:
  """Returns the mask of contiguous rows: computed from the offsets of queries and keys if the pattern is an
  interval of them, else stored tile by tile, each distinct tile once."""
  shape = q_len, k_len
  match pattern.offsets():
    case (None, None):
      return masks.FullMask(shape)
    case (lowest, highest):
      right = None if lowest is None else -lowest
      return masks.LocalMask(shape, (highest, right), offset=0)
  return PatternMask(pattern, shape)


@dataclasses.dataclass(frozen=True)
class PatternMask(masks.Mask):
  """Evaluates a pattern on tiles of contiguous rows.

  Attributes:
    pattern: the pattern.
    size: numbers of queries and keys.
  """

  pattern: Pattern
  size: tuple[int, int]

  @property
  def shape(self) -> tuple[int, int]:
    return self.size

  def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
    q, k = (
      Tokens(np.arange(length)[None, part]) for length, part in zip(self.size, index, strict=True)
    )
    return self.pattern.mask(q, k)


def is_empty(pattern: Pattern, q_len: int, k_len: int, q_block: int, k_block: int) -> bool:
  """Returns whether no query of contiguous rows sees a key."""
  mask = mask_of(pattern, q_len, k_len)
  schedule = pattern.schedule(q_len, k_len, q_block, k_block, has_marks=False)
  tiles = (
    mask[i * q_block : (i + 1) * q_block, j * k_block : (j + 1) * k_block]
    for i, j in np.argwhere(schedule != SKIP)
  )
  return not any(tile.any() for tile in tiles)
