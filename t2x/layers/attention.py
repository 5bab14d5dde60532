"""Multi-head attention to the sequence itself or to another (https://arxiv.org/abs/1706.03762), with
shared key-value heads (https://arxiv.org/abs/1911.02150, https://arxiv.org/abs/2305.13245), and
the cache it decodes with."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers.base import Context, Initializer, Linear, Tokens
from t2x.layers.constraints import constrain
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Norm
from t2x.layers.kernels import Auto, Kernel
from t2x.layers.patterns import Pattern
from t2x.layers.positions import PositionEncoding
from t2x.ranges import Positive, Size, TunableRate

__all__ = ['AttentionCache', 'CrossCache', 'MultiHeadAttention']


# The fields of the caches are not annotated with shapes: a stack puts its layers before the batch, and
# tree functions put other things than arrays into them.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionCache:
  """Keys and values of what was read so far; the slot of a token is its position.

  Attributes:
    k: keys, already rotated, [batch, slots, kv_heads, head_dim]; None for a mixer without keys.
    v: values, of the same shape; of another mixer, whatever it reads of a token: [batch, slots, ...].
    segments: segment of the token in each slot, int [batch, slots]; 0: the slot is empty.
    prefix: bool [batch, slots]: does the pattern `Prefix()` let everybody see the token?
  """

  k: Any
  v: Any
  segments: Any
  prefix: Any

  @staticmethod
  def empty(k: Array | None, v: Array) -> 'AttentionCache':
    """A cache of these zeros, with nothing written."""
    segments = jnp.zeros(v.shape[:2], jnp.int32)
    return AttentionCache(k, v, segments, segments.astype(bool))

  @property
  def tokens(self) -> Tokens:
    """What is known of the slots."""
    marks = {'prefix': self.prefix}
    return Tokens.row(self.v.shape[1], segments=self.segments, marks=marks)

  def write(self, k: Array | None, v: Array, tokens: Tokens) -> 'AttentionCache':
    """The cache with new keys and values at the slots of their positions, padding left out."""
    batch, length = v.shape[:2]
    num_slots = self.v.shape[1]
    ones = jnp.ones((1, length), jnp.int32)
    segments = ones if tokens.segments is None else tokens.segments
    prefix = tokens.marks.get('prefix', jnp.zeros_like(ones))
    # A slot out of range is not written: `drop` below.
    slots = jnp.where(segments == 0, num_slots, tokens.positions)
    slots = jnp.broadcast_to(slots, (batch, length))
    rows = jnp.arange(batch)[:, None]

    def put(old, new):
      new = jnp.broadcast_to(new.astype(old.dtype), (batch, length, *old.shape[2:]))
      return old.at[rows, slots].set(new, mode='drop')

    return AttentionCache(
      None if k is None else put(self.k, k),
      put(self.v, v),
      put(self.segments, segments),
      put(self.prefix, prefix),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CrossCache:
  """Keys, values and token metadata of a context.

  Attributes:
    k: keys [batch, source, kv_heads, head_dim].
    v: values, of the same shape.
    tokens: metadata of the context's tokens, each array [batch, source, ...].
  """

  k: Any
  v: Any
  tokens: Tokens


class MultiHeadAttention(nnx.Module):
  """Attention by `num_heads` heads: to `x` itself, or to a context where one is given.

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

  def init_cache(self, batch: int, length: int, dtype: Any = jnp.float32) -> AttentionCache:
    """An empty cache with `length` slots."""
    shape = (batch, length, self.num_kv_heads, self.head_dim)
    return AttentionCache.empty(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

  def cross_cache(self, context: Context) -> CrossCache:
    """Keys and values of a context, computed once for a whole generation."""
    k, v = self._keys_and_values(context.x)

    # Every leaf of a cache has the batch, so that rows can be picked out of it.
    def full(a):
      return jnp.broadcast_to(a, (len(context.x), *a.shape[1:]))

    return CrossCache(k, v, jax.tree.map(full, context.elsewhere().tokens))

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    context: Context | None = None,
    *,
    pattern: Pattern,
    tokens: Tokens | None = None,
    encoding: PositionEncoding | None = None,
    cache: AttentionCache | CrossCache | None = None,
    key: Array | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], AttentionCache | CrossCache | None]:
    """Attends from `x` to itself, to a context, or to what a cache holds.

    Args:
      context: what is attended to; None: `x` itself. Not looked at when `cache` is a CrossCache.
      pattern: who may see whom, by position.
      tokens: metadata of `x`; tokens of segment 0 are not written to the cache. None: a plain row.
      encoding: rotates queries and keys, adds to scores; None in cross-attention.
      cache: an AttentionCache is extended by `x` at its positions (slots beyond its length are
        not written) and then attended to; a CrossCache replaces the context.
      key: for dropout; None: none.

    Returns:
      The output, and the cache: the new one, the CrossCache as it was, or None.
    """
    tokens = Tokens.row(x.shape[1]) if tokens is None else tokens
    q = self.q(x)
    q = q if self.q_norm is None else self.q_norm(q)
    if isinstance(cache, CrossCache):
      k, v, k_tokens = cache.k, cache.v, cache.tokens
    else:
      source = Context(x, tokens) if context is None else context.elsewhere()
      k_tokens = source.tokens
      k, v = self._keys_and_values(source.x)
    if encoding is not None:
      if context is not None or isinstance(cache, CrossCache):
        raise ValueError(
          'positions of two sequences do not compare: cross-attention has no encoding'
        )
      positions = tokens.positions, k_tokens.positions
      q, k = encoding.rotate(q, k, *positions)
    if isinstance(cache, AttentionCache):
      cache = cache.write(k, v, tokens)
      k, v = cache.k, cache.v
      k_tokens = cache.tokens
    # Queries stay where their tokens are; every one may look at any key.
    q = constrain(q, 'batch', 'length', 'heads', None)
    k, v = (constrain(a.astype(q.dtype), 'batch', None, 'kv_heads', None) for a in (k, v))
    y = self.kernel(
      q,
      k,
      v,
      pattern=pattern,
      q_tokens=tokens,
      k_tokens=k_tokens,
      bias=encoding if encoding is not None and encoding.has_bias else None,
      scale=self.scale,
      dropout_rate=self.dropout_rate,
      key=key,
    )
    return self.out(constrain(y, 'batch', 'length', 'heads', None)), cache

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
