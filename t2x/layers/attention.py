"""Multi-head attention to the sequence itself or to another (https://arxiv.org/abs/1706.03762), with
shared key-value heads (https://arxiv.org/abs/1911.02150, https://arxiv.org/abs/2305.13245)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers.base import Initializer, Linear, RowLayout, Tokens
from t2x.layers.cache import KeyValueCache, SourceCache
from t2x.layers.constraints import constrain
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Norm, Result, Source
from t2x.layers.kernels import Auto, Kernel
from t2x.ranges import Positive, Size, TunableRate

__all__ = ['MultiHeadAttention']


class MultiHeadAttention(nnx.Module):
  """Attention by `num_heads` heads: to `x` itself, or to a source where one is given.

  Args:
    d_model: width of the input and output.
    num_heads: query heads.
    num_kv_heads: key-value heads, each shared by num_heads / num_kv_heads neighbouring query heads;
      1 is multi-query attention. None: as many as query heads.
    head_dim: features of a head. None: d_model / num_heads.
    use_bias: biases on queries, keys and values.
    out_bias: a bias on the output.
    qk_norm: builds a norm over the features of a head, put on queries and keys before they are rotated
      (https://arxiv.org/abs/2010.04245). None: no norm.
    kernel: how scores become outputs.
    scale: multiplies the scores. None: 1 / sqrt(head_dim).
    dropout_rate: dropout of the attention probabilities.
    kernel_init: initialiser of the query, key and value projections.
    out_init: initialiser of the output projection. None: as `kernel_init`.

  Raises:
    UserError: num_heads does not divide d_model and no head_dim is given, or num_kv_heads does not
      divide num_heads.
  """

  reads = frozenset({'pattern', 'encoding', 'source'})
  max_length: int | None = None

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    num_kv_heads: Size | None = None,
    head_dim: Size | None = None,
    use_bias: bool = True,
    out_bias: bool = True,
    qk_norm: Callable[..., Norm] | None = None,
    kernel: Kernel = Auto(),
    scale: Positive | None = None,
    dropout_rate: TunableRate = 0.0,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    _check_heads(d_model, num_heads, num_kv_heads, head_dim)
    head_dim = head_dim or d_model // num_heads
    self.num_heads = num_heads
    self.num_kv_heads = num_kv_heads
    self.head_dim = head_dim
    self.kernel = kernel
    self.scale = head_dim**-0.5 if scale is None else scale
    self.dropout_rate = dropout_rate

    def project(heads: int, name: str) -> Linear:
      axes = ('embed', name, 'head_dim')
      shape = (heads, head_dim)
      return Linear((d_model,), shape, axes, init=kernel_init, use_bias=use_bias, rngs=rngs)

    self.q = project(num_heads, 'heads')
    self.k = project(num_kv_heads, 'kv_heads')
    self.v = project(num_kv_heads, 'kv_heads')
    self.out = Linear(
      (num_heads, head_dim),
      (d_model,),
      ('heads', 'head_dim', 'embed'),
      init=out_init or kernel_init,
      use_bias=out_bias,
      rngs=rngs,
    )
    self.q_norm = qk_norm and qk_norm(head_dim, rngs=rngs)
    self.k_norm = qk_norm and qk_norm(head_dim, rngs=rngs)

  def init_cache(self, batch: int, num_slots: int, dtype: Any = jnp.float32) -> KeyValueCache:
    """An empty cache with `num_slots` slots."""
    shape = (batch, self.num_kv_heads, num_slots, self.head_dim)
    return KeyValueCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

  def source_cache(self, source: Source) -> SourceCache:
    """Keys and values of a source, computed once for a whole generation."""
    assert source.x is not None  # Caches are made of vectors.
    k, v = self._keys_and_values(source.x)
    return SourceCache(k.swapaxes(1, 2), v.swapaxes(1, 2))

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: Any = None,
  ) -> Result:
    """Attends from `x` to itself, to `call.source`, or to what a cache holds.

    Args:
      x: the input.
      call: a source replaces `x` as what is attended to; it has no position encoding.
      cache: a KeyValueCache is extended by `x` at `call.slots` and then attended to; a SourceCache
        has the keys and values of the source.

    Returns:
      The output, and the cache: the extended one, the SourceCache as it was, or None.
    """
    q = self.q(x)
    q = q if self.q_norm is None else self.q_norm(q)
    if call.source is None:
      y, cache = self._attend_self(q, x, call, cache)
    else:
      y = self._attend_source(q, cache or self.source_cache(call.source), call, call.source.tokens)
    return Result(self.out(constrain(y, 'batch', 'length', 'heads', None)), cache)

  def _attend_self(
    self, q: Array, x: Array, call: Call, cache: KeyValueCache | None
  ) -> tuple[Array, KeyValueCache | None]:
    k, v = self._keys_and_values(x)
    positions = call.tokens.positions
    if call.encoding is not None:
      q, k = call.encoding.rotate(q, k, positions, positions)
    k_tokens = call.tokens
    if cache is not None and call.slots is not None:
      cache = cache.extend(k, v, call.slots.start)
      k, v = cache.k.swapaxes(1, 2), cache.v.swapaxes(1, 2)
      k_tokens = call.slots.tokens
    return self._attend(q, k, v, call, k_tokens), cache

  def _attend_source(self, q: Array, cache: SourceCache, call: Call, k_tokens: Tokens) -> Array:
    """Rows of q that are copies of one row of the source are so many more queries of that row."""
    if call.encoding is not None:
      raise UserError(
        'positions of two sequences do not compare: cross-attention has no position encoding'
      )
    k, v = cache.k.swapaxes(1, 2), cache.v.swapaxes(1, 2)
    if k_tokens.layout is RowLayout.PACKED:
      # It holds between tokens of one sequence only.
      k_tokens = dataclasses.replace(k_tokens, layout=RowLayout.ARBITRARY)
    rows, shape = k.shape[0], q.shape
    if rows == shape[0]:
      return self._attend(q, k, v, call, k_tokens)

    def grouped(a):
      return None if a is None else jnp.broadcast_to(a, shape[:2]).reshape(rows, -1)

    tokens = Tokens(grouped(call.tokens.positions), grouped(call.tokens.segments))
    call = dataclasses.replace(call, tokens=tokens)
    y = self._attend(q.reshape(rows, -1, *shape[2:]), k, v, call, k_tokens)
    return y.reshape(*shape[:3], -1)

  def _attend(self, q: Array, k: Array, v: Array, call: Call, k_tokens: Tokens) -> Array:
    # Queries stay where their tokens are; every one may look at any key.
    q = constrain(q, 'batch', 'length', 'heads', None)
    k, v = (constrain(a.astype(q.dtype), 'batch', None, 'kv_heads', None) for a in (k, v))
    encoding = call.encoding
    return self.kernel(
      q,
      k,
      v,
      pattern=call.pattern,
      q_tokens=call.tokens,
      k_tokens=k_tokens,
      bias=encoding if encoding is not None and encoding.has_bias else None,
      scale=self.scale,
      dropout_rate=self.dropout_rate,
      key=call.key,
    )

  def _keys_and_values(self, x: Array) -> tuple[Array, Array]:
    k = self.k(x)
    return k if self.k_norm is None else self.k_norm(k), self.v(x)


def _check_heads(d_model: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> None:
  if head_dim is None and d_model % num_heads:
    raise UserError(
      f'MultiHeadAttention.num_heads = {num_heads} does not divide d_model = {d_model}: choose '
      'another or set MultiHeadAttention.head_dim'
    )
  if num_kv_heads < 1 or num_heads % num_kv_heads:
    raise UserError(
      f'MultiHeadAttention.num_kv_heads = {num_kv_heads} does not divide num_heads = {num_heads}'
    )
