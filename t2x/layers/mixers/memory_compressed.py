"""Memory-compressed attention (Liu et al. 2018, https://arxiv.org/abs/1801.10198): fewer keys and values, by a
strided convolution."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from t2x.base.ranges import Size, TunableRate
from t2x.layers.arrays import Leaf
from t2x.layers.attention.head_projections import (
  HeadFeatures,
  HeadProjections,
  Hidden,
  check_one_segment,
  nan_for_several_segments,
)
from t2x.layers.attention.kernels import AttentionInputs, Auto, DotProduct, Kernel
from t2x.layers.caches import Cache
from t2x.layers.initializers import lecun_normal, zeros
from t2x.layers.interfaces import Call, Result, SourceSequence
from t2x.layers.parameters import Initializer, param
from t2x.layers.products import broadcast
from t2x.layers.tokens import Tokens, check_slots, to_blocks

__all__ = ['MemoryCompressedAttention']


class StridedConvolution(nnx.Module):
  """Convolution of the features of each head over blocks of `ratio` tokens, with stride `ratio`.

  Args:
    num_heads: number of heads, each with its own filters.
    head_dim: features per head of the input and the output.
    ratio: tokens per block.
    init: initialiser of the filters, called with [ratio * head_dim, head_dim] for each head.
  """

  def __init__(
    self, num_heads: Size, head_dim: Size, ratio: Size, *, init: Initializer, rngs: nnx.Rngs
  ):
    self.ratio = ratio
    shape, matrix = (num_heads, ratio, head_dim, head_dim), (ratio * head_dim, head_dim)
    axes = ('heads', 'taps', 'head_dim', 'head_dim')
    self.kernel = param(init, shape, axes, rngs, kind='filter', matrix=matrix)
    self.bias = param(zeros(), (num_heads, head_dim), ('heads', 'head_dim'), rngs, kind='vector')

  def __call__(self, x: HeadFeatures) -> Float[Array, 'batch blocks heads head_dim']:
    """Returns one vector per block; zeros follow the last token."""
    blocks = to_blocks(x, self.ratio)
    y = jnp.einsum('bnrhd,hrde->bnhe', blocks, self.kernel[...].astype(x.dtype))
    return y + broadcast(self.bias[...], y.shape, y.dtype)


class MemoryCompressedAttention(HeadProjections):
  """Attention from each token to blocks of `ratio` tokens, whose keys and values are strided convolutions of
  those of their tokens, and to a learned null key and value.

  Under Causal() a token sees the complete blocks that end at it or before it, and before the end of the first block
  only the null key. Under Full() it sees all blocks; zeros complete the last. Blocks start at position 0 of a row,
  which must be one segment with positions from 0 (`Tokens.row`); the package memory-compressed-attention counts them
  from the end of the row instead, so that the length of a row changes the blocks of its first tokens, and a cache
  cannot hold them. Both agree if `ratio` divides the length. Scores and keys are `ratio` times fewer than in
  MultiHeadAttention, and so are the keys and values in a cache.

  Args:
    ratio: tokens per block, the size and stride of the convolutions.
    kernel: computes the output from queries and compressed keys and values.
    dropout_rate: dropout of the attention probabilities.
    conv_init: initialiser of the convolutions; see `StridedConvolution`.
    null_init: initialiser of the null key and value, each [num_heads, head_dim].
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `HeadProjections`; when called, the rows may hold several segments.
  """

  def __init__(
    self,
    d_model: int,
    *,
    ratio: Size = 3,
    kernel: Kernel = Auto(),
    dropout_rate: TunableRate = 0.0,
    conv_init: Initializer = lecun_normal(),
    null_init: Initializer = zeros(),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, rngs=rngs, **settings)
    self.ratio, self.kernel, self.dropout_rate = ratio, kernel, dropout_rate
    shape = self.num_heads, self.head_dim
    self.k_conv = StridedConvolution(*shape, ratio, init=conv_init, rngs=rngs)
    self.v_conv = StridedConvolution(*shape, ratio, init=conv_init, rngs=rngs)
    self.k_null = param(null_init, shape, ('heads', 'head_dim'), rngs, kind='vector')
    self.v_null = param(null_init, shape, ('heads', 'head_dim'), rngs, kind='vector')

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> 'CompressedMemory':
    """Returns an empty memory for the blocks of `num_slots` tokens."""
    shape = batch, -(-num_slots // self.ratio), self.num_heads, self.head_dim
    blocks, tail = jnp.zeros(shape, dtype), jnp.zeros((batch, self.ratio, *shape[2:]), dtype)
    return CompressedMemory(blocks, blocks, tail, tail, jnp.zeros(batch, jnp.int32))

  def __call__(self, x: Hidden, call: Call, cache: 'CompressedMemory | None' = None) -> Result:
    """Attends from `x` to its blocks, or to those of the memory and `x`.

    The output is NaN for rows with several segments, because segments are only available at run time.
    """
    self.check_call(call)
    q, k, v = self.project(x)
    is_token = call.tokens.present
    if cache is None:
      check_one_segment(self, call.tokens)
      k, v = (jnp.where(is_token[..., None, None], a, 0) for a in (k, v))
      k, v = self.k_conv(k), self.v_conv(v)
      is_block = to_blocks(is_token, self.ratio).any(axis=2)
    else:
      cache = cache.extend(k, v, is_token, (self.k_conv, self.v_conv))
      k, v = cache.k.astype(k.dtype), cache.v.astype(v.dtype)
      is_block = jnp.arange(k.shape[1])[None] * self.ratio < cache.count[:, None]
    y = self._attend(q, k, v, is_block, call)
    return Result(self.output(nan_for_several_segments(y, call.tokens)), cache)

  def _attend(
    self, q: Array, k: Array, v: Array, is_block: Bool[Array, '#batch blocks'], call: Call
  ) -> HeadFeatures:
    """Attends to the null key, at position 0, and to the blocks, at the positions of their last tokens."""
    k, v = (
      jnp.concatenate([broadcast(null[...], (len(q), 1, *a.shape[2:]), a.dtype), a], axis=1)
      for null, a in ((self.k_null, k), (self.v_null, v))
    )
    blocks = jnp.arange(k.shape[1])[None]
    k_tokens = Tokens(
      jnp.maximum(blocks * self.ratio - 1, 0),
      jnp.pad(is_block, ((0, 0), (1, 0)), constant_values=True).astype(jnp.int32),
    )
    inputs = AttentionInputs(
      DotProduct(q, k, self.head_dim**-0.5),
      v,
      call.pattern,
      Tokens(call.tokens.positions),
      k_tokens,
      dropout_rate=self.dropout_rate,
      key=call.key,
    )
    return self.kernel(inputs)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CompressedMemory(Cache):
  """Compressed keys and values of the earlier tokens of each row.

  Attributes:
    k: keys of blocks, [batch, blocks, heads, head_dim]; block i is complete if (i + 1) * ratio <= count.
    v: values of blocks.
    k_tail: keys of the tokens of the incomplete block, [batch, ratio, heads, head_dim].
    v_tail: values of these tokens.
    count: number of tokens of each row, int32 [batch].
  """

  # Not annotated with shapes: a stack adds a leading dimension for its layers.
  k: Leaf
  v: Leaf
  k_tail: Leaf
  v_tail: Leaf
  count: Leaf

  def extend(
    self,
    k: HeadFeatures,
    v: HeadFeatures,
    is_token: Bool[Array, '#batch length'],
    compress: tuple[Callable[..., Any], Callable[..., Any]],
  ) -> 'CompressedMemory':
    """Appends the tokens of a call, without padding, and compresses the blocks that they reach.

    The values of a row with more tokens than its blocks hold are NaN.

    Raises:
      UserError: there are too many tokens, and their number is not traced.
    """
    is_token, size = jnp.broadcast_to(is_token, k.shape[:2]), self.k.shape[1] * self.k_tail.shape[1]
    new_k, k_tail = self._appended(self.k, self.k_tail, k, is_token, compress[0])
    new_v, v_tail = self._appended(self.v, self.v_tail, v, is_token, compress[1])
    count = self.count + is_token.sum(axis=1, dtype=jnp.int32)
    check_slots(count, size)
    new_v = jnp.where((count <= size)[:, None, None, None], new_v, jnp.nan)
    return CompressedMemory(new_k, new_v, k_tail, v_tail, count)

  def _appended(
    self, blocks: Array, tail: Array, new: Array, is_token: Array, compress: Callable[..., Any]
  ) -> tuple[Array, Array]:
    """Returns the new blocks and the new tail, of keys or of values."""
    ratio, rows = tail.shape[1], jnp.arange(len(new))
    used = self.count % ratio
    # The tail, the new tokens, and places up to a multiple of the ratio.
    size = ratio * (1 + -(-new.shape[1] // ratio))
    is_used = (jnp.arange(ratio)[None] < used[:, None])[..., None, None]
    buffer = jnp.pad(
      jnp.where(is_used, tail, 0), ((0, 0), (0, size - ratio), (0, 0), (0, 0))
    ).astype(new.dtype)
    place = jnp.where(is_token, used[:, None] + jnp.cumsum(is_token, axis=1) - 1, size)
    buffer = buffer.at[rows[:, None], place].set(new, mode='drop')
    reached = (self.count // ratio)[:, None] + jnp.arange(size // ratio)[None]
    blocks = blocks.at[rows[:, None], reached].set(
      compress(buffer).astype(blocks.dtype), mode='drop'
    )
    last = (used + is_token.sum(axis=1)) // ratio
    return blocks, to_blocks(buffer, ratio)[rows, last].astype(tail.dtype)
