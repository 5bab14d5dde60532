"""Position biases of `AttentionFree` for all pairs of positions (AFT-full, https://arxiv.org/abs/2105.14103)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2x.base.ranges import Size
from t2x.layers.attention.head_projections import (
  HeadFeatures,
  check_max_length,
  check_one_segment,
  nan_for_several_segments,
)
from t2x.layers.counting import token_sums
from t2x.layers.initializers import normal
from t2x.layers.interfaces import Call
from t2x.layers.mixers.attention_free import LOWEST, BiasModule, Sums
from t2x.layers.parameters import Initializer, param
from t2x.layers.patterns.algebra import Causal

__all__ = ['FactorizedBias', 'FullBias']


class FullBias(BiasModule):
  """AFT-full: a learned w_tt' for each pair of positions.

  Time and the size of w are quadratic in the length, the activations of a row linear. A row must be one segment with
  positions from 0 (`Tokens.row`). Under Causal() the biases of later keys are not used: queries are processed chunk by
  chunk, because the largest visible key differs.

  Args:
    num_heads: number of groups of features.
    max_length: maximum sequence length.
    chunk: queries per chunk, under Causal().
    init: initialiser of the biases [num_heads, max_length, max_length].
  """

  def __init__(
    self,
    num_heads: Size,
    *,
    max_length: Size,
    chunk: Size = 32,
    init: Initializer = normal(0.01),
    rngs: nnx.Rngs,
  ):
    self.max_length = max_length
    self.chunk = chunk
    shape, axes = (num_heads, max_length, max_length), ('heads', 'length', 'length')
    self.table = param(init, shape, axes, rngs, kind='table', keep_float32=True)

  def biases(self, length: int) -> Float[Array, 'heads length length']:
    """Returns the biases of the first positions."""
    return self.table[:, :length, :length]

  def __call__(self, k: Array, v: Array, call: Call, cache: None) -> tuple[Array, None]:
    """See `PositionBias`. The output is NaN for rows with several segments, which are only known at run time."""
    length, tokens = k.shape[1], call.tokens
    check_one_segment(self, tokens, 'ConvBias or LocalBias')
    check_max_length(self, length)
    w = self.biases(length).astype(k.dtype)
    if call.pattern.offsets() == Causal().offsets():
      y = _causal_average(w, k, v, jnp.broadcast_to(tokens.present, k.shape[:2]), self.chunk)
    else:
      is_token = tokens.present[..., None, None]
      maximum = jnp.where(is_token, jax.lax.stop_gradient(k), LOWEST).max(axis=1, keepdims=True)
      sums = Sums(maximum, *_weighted(_exp(w), k, v, is_token, maximum), tokens.row_segments)
      y = sums.average()
    return nan_for_several_segments(y, tokens), None


class FactorizedBias(FullBias):
  """`FullBias` whose biases are products of learned vectors, w_tt' = a_t b_t', as in the paper.

  Args:
    rank: size of the vectors.
    init: initialiser of the vectors [num_heads, max_length, rank]. The biases have the product of their variances,
      times rank.
  """

  def __init__(
    self,
    num_heads: Size,
    *,
    max_length: Size,
    rank: Size = 128,
    chunk: Size = 32,
    init: Initializer = normal(0.01),
    rngs: nnx.Rngs,
  ):
    self.max_length = max_length
    self.chunk = chunk
    shape, axes = (num_heads, max_length, rank), ('heads', 'length', 'rank')
    self.a = param(init, shape, axes, rngs, kind='table', keep_float32=True)
    self.b = param(init, shape, axes, rngs, kind='table', keep_float32=True)

  def biases(self, length: int) -> Float[Array, 'heads length length']:
    """Returns the biases of the first positions."""
    return jnp.einsum('hir,hjr->hij', self.a[:, :length], self.b[:, :length])


def _exp(w: Float[Array, 'heads queries keys']) -> Float[Array, 'heads queries keys']:
  """Returns exponentials relative to the largest bias of each query."""
  return jnp.exp(w - jax.lax.stop_gradient(w.max(axis=-1, keepdims=True)))


def _weighted(
  weights: Float[Array, 'heads queries keys'],
  k: Array,
  v: Array,
  visible: Bool[Array, '#batch keys 1 1'],
  maximum: Array,
) -> tuple[Array, Array]:
  """Returns the weighted sums of exp(k - maximum) and exp(k - maximum) v over the visible keys."""
  own = jnp.exp(jnp.where(visible, k - maximum, -jnp.inf))
  denominator = jnp.einsum('hij,bjhd->bihd', weights, own)
  return denominator, jnp.einsum('hij,bjhd->bihd', weights, own * v)


def _causal_average(
  w: Float[Array, 'heads length length'],
  k: HeadFeatures,
  v: HeadFeatures,
  is_token: Bool[Array, 'batch length'],
  chunk: int,
) -> HeadFeatures:
  """Averages under Causal(): a matrix product for the keys before each chunk of queries, relative to their largest key,
  and all pairs within the chunk."""
  length = k.shape[1]
  chunk = min(chunk, length)
  padding = -length % chunk
  k, v = (jnp.pad(a, ((0, 0), (0, padding), (0, 0), (0, 0))) for a in (k, v))
  is_token = jnp.pad(is_token, ((0, 0), (0, padding)))
  w = jnp.pad(w, ((0, 0), (0, padding), (0, padding)))
  # The average does not depend on what exponentials are relative to.
  constant = jax.lax.stop_gradient(k)
  largest = jax.lax.cummax(jnp.where(is_token[..., None, None], constant, LOWEST), axis=1)
  index = jnp.arange(length + padding)

  @jax.checkpoint
  def average(_: None, start: Array) -> tuple[None, Array]:
    def rows(a: Array, axis: int) -> Array:
      return jax.lax.dynamic_slice_in_dim(a, start, chunk, axis)

    own_w = rows(w, 1)
    before = index[None, None] <= rows(index, 0)[None, :, None]
    own_w = own_w - jax.lax.stop_gradient(
      jnp.where(before, own_w, LOWEST).max(axis=-1, keepdims=True)
    )
    earlier = index < start
    maximum = jax.lax.dynamic_slice_in_dim(largest, jnp.maximum(start - 1, 0), 1, 1)
    maximum = jnp.where(start > 0, maximum, LOWEST)
    weights = jnp.exp(jnp.where(before, own_w, -jnp.inf))
    visible = (is_token & earlier[None])[..., None, None]
    segment = jnp.ones((1, 1), jnp.int32)
    far = Sums(maximum, *_weighted(weights, k, v, visible, maximum), segment)
    # [batch, queries, keys, heads, head_dim]
    visible = jnp.tril(jnp.ones((chunk, chunk), bool))[None] & rows(is_token, 1)[:, None]
    scores = jnp.moveaxis(rows(own_w, 2), 0, 2)[None, ..., None] + rows(k, 1)[:, None]
    scores = jnp.where(visible[..., None, None], scores, -jnp.inf)
    maximum = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=2), LOWEST))
    weights = jnp.exp(scores - maximum[:, :, None])
    with token_sums():
      values = (weights * rows(v, 1)[:, None]).sum(axis=2)
    near = Sums(maximum, weights.sum(axis=2), values, segment)
    return None, far.then(near).average()

  _, y = jax.lax.scan(average, None, jnp.arange(0, length + padding, chunk))
  y = jnp.moveaxis(y, 0, 1)
  return y.reshape(len(k), -1, *k.shape[2:])[:, :length]
