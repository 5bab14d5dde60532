"""Synthesizers (Tay et al. 2020, https://arxiv.org/abs/2005.00743): attention whose scores come from the
query alone or from a table, in place of queries that meet keys or beside them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers.base import Initializer, Linear, dropout, param
from t2x.layers.cache import KeyValueCache
from t2x.layers.constraints import constrain
from t2x.layers.initializers import xavier_uniform, zeros
from t2x.layers.interfaces import Call, Result
from t2x.layers.kernels.base import hide_blind, position_bias, softmax_dtype
from t2x.layers.masks import attention_mask
from t2x.ranges import Positive, Size, TunableRate

__all__ = [
  'Plus',
  'PlusAlpha',
  'Replace',
  'Synthesizer',
]


class Replace(nnx.Module):
  """Synthetic scores alone: there are no keys."""

  reads_dots = False

  def __init__(self, *, rngs: nnx.Rngs):
    pass

  def __call__(
    self,
    dots: Float[Array, 'batch heads queries keys'] | None,
    synthetic: Float[Array, '#batch heads queries keys'],
  ) -> Float[Array, '#batch heads queries keys']:
    """`synthetic`; the rule is built as `Rule(rngs=rngs)`, and `dots` is None unless `reads_dots`."""
    return synthetic


class Plus(nnx.Module):
  """Scaled dot products plus synthetic scores."""

  reads_dots = True

  def __init__(self, *, rngs: nnx.Rngs):
    pass

  def __call__(
    self,
    dots: Float[Array, 'batch heads queries keys'],
    synthetic: Float[Array, '#batch heads queries keys'],
  ) -> Float[Array, 'batch heads queries keys']:
    """Their sum."""
    return dots + synthetic


class PlusAlpha(nnx.Module):
  """alpha dots + (1 - alpha) synthetic, alpha the sigmoid of a learned number, at first 1 / 2."""

  reads_dots = True

  def __init__(self, *, rngs: nnx.Rngs):
    self.logit = param(zeros(), (), (), rngs, keep_float32=True)

  def __call__(
    self,
    dots: Float[Array, 'batch heads queries keys'],
    synthetic: Float[Array, '#batch heads queries keys'],
  ) -> Float[Array, 'batch heads queries keys']:
    """Their weighted mean, in the type of `dots`."""
    alpha = jax.nn.sigmoid(self.logit[...]).astype(dots.dtype)
    return alpha * dots + (1 - alpha) * synthetic


class Synthesizer(nnx.Module):
  """Self-attention with synthetic scores, in place of dot products or mixed with them.

  Queries are projected where `scores` or `mix` reads them and keys where `mix` does. A token's
  position in its own segment is its row and column of the tables. Memory: the whole matrix of scores.

  Args:
    d_model: width of the input and output.
    num_heads: heads.
    head_dim: features of a head. None: d_model / num_heads.
    scores: builds where the synthetic scores come from.
    mix: builds what makes scores of them and the dot products.
    use_bias: biases on queries, keys and values.
    out_bias: a bias on the output.
    scale: multiplies the dot products. None: 1 / sqrt(head_dim).
    dropout_rate: dropout of the probabilities.
    kernel_init: initialiser of the query, key and value projections.
    out_init: initialiser of the output projection. None: as `kernel_init`.

  Raises:
    UserError: num_heads does not divide d_model and no head_dim is given; when called, on a
      source, or on sequences longer than the synthetic scores have.
  """

  reads = frozenset({'pattern', 'encoding'})

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    head_dim: Size | None = None,
    scores: Callable[..., nnx.Module],
    mix: Callable[..., nnx.Module] = Replace,
    use_bias: bool = True,
    out_bias: bool = True,
    scale: Positive | None = None,
    dropout_rate: TunableRate = 0.0,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    if head_dim is None and d_model % num_heads:
      raise UserError(
        f'Synthesizer.num_heads = {num_heads} does not divide d_model = {d_model}: choose another '
        'or set Synthesizer.head_dim'
      )
    heads = num_heads, head_dim or d_model // num_heads
    self.head_shape = heads
    self.scale = heads[1] ** -0.5 if scale is None else scale
    self.dropout_rate = dropout_rate

    def project() -> Linear:
      axes = ('embed', 'heads', 'head_dim')
      return Linear((d_model,), heads, axes, init=kernel_init, use_bias=use_bias, rngs=rngs)

    source: Any = scores(*heads, rngs=rngs)
    rule: Any = mix(rngs=rngs)
    self.scores = source
    self.mix = rule
    self.q = project() if source.reads_queries or rule.reads_dots else None
    self.k = project() if rule.reads_dots else None
    self.v = project()
    self.out = Linear(
      heads,
      (d_model,),
      ('heads', 'head_dim', 'embed'),
      init=out_init or kernel_init,
      use_bias=out_bias,
      rngs=rngs,
    )

  @property
  def max_length(self) -> int | None:
    """The longest sequence that `scores` has scores for."""
    return self.scores.max_length

  def init_cache(self, batch: int, num_slots: int, dtype: Any = jnp.float32) -> KeyValueCache:
    """An empty cache with `num_slots` slots; it has keys where there are dot products."""
    heads, head_dim = self.head_shape
    v = jnp.zeros((batch, heads, num_slots, head_dim), dtype)
    return KeyValueCache(None if self.k is None else v, v)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: KeyValueCache | None = None
  ) -> Result:
    """As `MultiHeadAttention`, to `x` itself or to what a cache holds.

    What turns queries and keys, or adds to their products (`RoPE`, `ShawPositions`), works where
    there are dot products; what adds to scores alone (`T5Bias`, `ALiBi`) is added after the mix.
    """
    if call.source is not None:
      raise UserError(
        'Synthesizer has no scores for a source: use MultiHeadAttention for cross-attention'
      )
    self._check_length(x.shape[1])
    tokens, encoding = call.tokens, call.encoding
    positions = tokens.positions
    q = None if self.q is None else constrain(self.q(x), 'batch', 'length', 'heads', None)
    k, v = None if self.k is None else self.k(x), self.v(x)
    turned = q
    if encoding is not None and q is not None and k is not None:
      turned, k = encoding.rotate(q, k, positions, positions)
    k_tokens = tokens
    if cache is not None and call.slots is not None:
      cache = cache.extend(k, v, call.slots.start)
      k, v = None if k is None else cache.k.swapaxes(1, 2), cache.v.swapaxes(1, 2)
      k_tokens = call.slots.tokens
    v = constrain(v.astype(x.dtype), 'batch', None, 'heads', None)
    k_positions = k_tokens.positions
    dots = None if k is None else self._dots(turned, k, encoding, positions, k_positions)
    dtype = softmax_dtype(x)
    scores = self.mix(dots, self.scores(q, positions, k_positions).astype(dtype))
    if encoding is not None and encoding.has_bias and not encoding.reads_queries:
      added = position_bias(encoding, positions, k_positions, self.head_shape[0])
      scores = scores + added.astype(dtype)
    mask = attention_mask(call.pattern, tokens, k_tokens)
    y = self._read(scores, v, mask, call.key)
    return Result(self.out(constrain(y, 'batch', 'length', 'heads', None)), cache)

  def _dots(self, q, k, encoding, q_positions, k_positions):
    k = constrain(k.astype(q.dtype), 'batch', None, 'heads', None)
    dots = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=softmax_dtype(q))
    if encoding is not None and encoding.reads_queries:
      dots = dots + encoding.query_bias(q, q_positions, k_positions)
    return dots * self.scale

  def _read(self, scores, v, mask, key):
    """Softmax of the scores, which may have no batch of their own, over the values."""
    if mask is not None:
      scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    scores = jnp.broadcast_to(scores, (v.shape[0], *scores.shape[1:]))
    probabilities = dropout(jax.nn.softmax(scores).astype(v.dtype), self.dropout_rate, key)
    y = jnp.einsum('bhqk,bkhd->bqhd', probabilities, v)
    return y if mask is None else hide_blind(y, mask)

  def _check_length(self, length: int) -> None:
    if length > self.scores.max_length:
      raise UserError(
        f'a row of {length} tokens is longer than the {self.scores.max_length} positions of '
        f'{type(self.scores).__name__}: shorten the rows or make it longer'
      )
