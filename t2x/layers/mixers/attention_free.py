"""The Attention Free Transformer (Zhai et al. 2021, https://arxiv.org/abs/2105.14103): each feature is an average of
its values, weighted by exponentials of keys and learned position biases."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.arrays import Leaf
from t2x.layers.attention.head_projections import HeadProjections, Hidden
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.caches import RecurrentState
from t2x.layers.counting import token_sums
from t2x.layers.dtypes import Dtypes
from t2x.layers.initializers import normal
from t2x.layers.interfaces import Call, Result, SourceSequence
from t2x.layers.parameters import Initializer, param
from t2x.layers.patterns.algebra import Causal
from t2x.layers.tokens import Tokens, rows_at

__all__ = ['AttentionFree', 'ConvBias', 'LocalBias', 'NoBias', 'PositionBias']

# Maximum over no keys: finite, so that differences of maxima are numbers.
LOWEST = -1e30


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sums(RecurrentState):
  """Sums of exp(k) v and exp(k) over tokens of one segment, relative to their largest key.

  Attributes:
    maximum: the largest k of each feature, [..., heads, head_dim].
    weights: the sum of exp(k - maximum).
    values: the sum of exp(k - maximum) v.
    segment: the segment, [...]; 0: no token.
  """

  # Not annotated with shapes: a stack adds a leading dimension for its layers.
  maximum: Leaf
  weights: Leaf
  values: Leaf
  segment: Leaf

  @staticmethod
  def of(k: Array, v: Array, segments: Int[Array, '*rest']) -> 'Sums':
    """Returns the sums over each token by itself; keys and values are [..., heads, head_dim]."""
    is_token = (segments != 0)[..., None, None]
    maximum = jnp.where(is_token, jax.lax.stop_gradient(k), LOWEST)
    weights = jnp.exp(jnp.where(is_token, k - maximum, -jnp.inf))
    return Sums(maximum, weights, weights * v, segments)

  @staticmethod
  def empty(batch: int, heads: int, head_dim: int, dtype: DTypeLike = Dtypes.reductions) -> 'Sums':
    """Returns the sums over no token."""
    zeros = jnp.zeros((batch, heads, head_dim), dtype)
    return Sums(zeros + LOWEST, zeros, zeros, jnp.zeros(batch, jnp.int32))

  def then(self, later: 'Sums') -> 'Sums':
    """Returns the sums over these tokens and later ones; over the later ones only if their segment differs."""
    continues = (self.segment == later.segment) | (later.segment == 0)
    maximum = jnp.where(continues[..., None, None], self.maximum, LOWEST)
    largest = jnp.maximum(maximum, later.maximum)
    factor = jnp.where(continues[..., None, None], jnp.exp(maximum - largest), 0)
    other = jnp.exp(later.maximum - largest)
    return Sums(
      largest,
      factor * self.weights + other * later.weights,
      factor * self.values + other * later.values,
      jnp.where(later.segment == 0, self.segment, later.segment),
    )

  def at(self, offset: int) -> 'Sums':
    """Returns, for each token of the rows, the sums at the token `offset` indices after it, or over no token."""

    def moved(a: Array, fill: float | int) -> Array:
      index = jnp.arange(a.shape[1]) + offset
      inside = ((index >= 0) & (index < a.shape[1])).reshape(1, -1, *[1] * (a.ndim - 2))
      return jnp.where(inside, jnp.roll(a, -offset, axis=1), fill)

    return Sums(
      moved(self.maximum, LOWEST),
      moved(self.weights, 0),
      moved(self.values, 0),
      moved(self.segment, 0),
    )

  def average(self) -> Array:
    """Returns the weighted average of the values; 0 over no token."""
    return self.values / jnp.where(self.weights > 0, self.weights, 1)


@token_sums()
def running(sums: Sums, *, reverse: bool = False) -> Sums:
  """Returns, for each token of the rows, the sums up to it (`reverse`: from it on) over its segment."""

  def combine(a: Sums, b: Sums) -> Sums:
    return a.then(b)

  return jax.lax.associative_scan(combine, sums, reverse=reverse, axis=1)


@runtime_checkable
class PositionBias(Protocol):
  """Learned biases w of `AttentionFree` and the averages under them. Built as `PositionBias(num_heads, rngs=rngs)`."""

  @property
  def max_length(self) -> int | None:
    """Maximum sequence length; None: no limit."""
    ...

  def init_cache(self, batch: int, heads: int, head_dim: int) -> Sums:
    """Returns the cache before the first token; raises UserError if the biases need all keys."""
    ...

  def __call__(self, k: Array, v: Array, call: Call, cache: Sums | None) -> tuple[Array, Any]:
    """Returns the weighted averages of the values, [batch, length, heads, head_dim], and the new cache."""
    ...


class AttentionFree(HeadProjections):
  """AFT: sigmoid(q_t) * sum_t' exp(k_t' + w_tt') v_t' / sum_t' exp(k_t' + w_tt'), for each feature by itself.

  The pattern must be Full() or Causal(), and the tokens of a segment must be contiguous. Exponentials are computed
  relative to the largest visible key, so that a later token changes no earlier output.

  Args:
    bias: builds the position biases w. `NoBias` is AFT-simple, `FullBias` and `FactorizedBias` AFT-full, `LocalBias`
      AFT-local and `ConvBias` AFT-conv.
    num_heads: number of groups of features with position biases of their own. The tensor axis of a mesh must
      divide it.
    settings: those of `HeadProjections`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    bias: Callable[..., PositionBias],
    num_heads: Size = 1,
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, num_heads=num_heads, rngs=rngs, **settings)
    self.bias = bias(self.num_heads, rngs=rngs)
    self.max_length = self.bias.max_length

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> Sums:
    """Returns empty sums, in float32 and of a size that does not depend on `num_slots`.

    Raises:
      UserError: the biases are not `NoBias`.
    """
    sums: Sums = self.bias.init_cache(batch, self.num_heads, self.head_dim)
    return sums

  def __call__(self, x: Hidden, call: Call, cache: Sums | None = None) -> Result:
    """Averages the values of the tokens of `x` and of the cache."""
    self.check_call(call)
    q, k, v = self.project(x)
    dtype = softmax_dtype(x)
    y, cache = self.bias(k.astype(dtype), v.astype(dtype), call, cache)
    return Result(self.output((jax.nn.sigmoid(q.astype(dtype)) * y).astype(x.dtype)), cache)


class BiasModule(nnx.Module):
  """Base class of biases that need all keys."""

  implements = (PositionBias,)
  max_length: int | None = None

  def init_cache(self, batch: int, heads: int, head_dim: int) -> Sums:
    """Raises UserError, because the averages also depend on the positions of cached tokens."""
    raise UserError(
      f'AttentionFree with {type(self).__name__} cannot decode token by token: use NoBias, or an Encoder'
    )


class _Windowed(BiasModule):
  """Base class of biases that are zero at and beyond a distance, in time and memory linear in the length.

  The sums over tokens outside of the window come from running sums, so that only tokens inside of it are visited one
  distance at a time. Distances are counted along the row, padding included.
  """

  # Smallest distance without a bias.
  reach: int = 0

  def at_offset(
    self, offset: Int[Array, ''], tokens: Tokens
  ) -> Float[Array, '#batch #length heads']:
    """Returns the biases of each query for the key `offset` indices after it."""
    raise NotImplementedError

  def __call__(
    self, k: Array, v: Array, call: Call, cache: Sums | None = None
  ) -> tuple[Array, Sums | None]:
    """See `PositionBias`."""
    tokens = call.tokens
    segments = jnp.broadcast_to(tokens.row_segments, k.shape[:2])
    own = Sums.of(k, v, segments)
    earlier = running(own)
    if cache is not None:
      earlier = jax.tree.map(lambda a, b: a[:, None].astype(b.dtype), cache, earlier).then(earlier)
      cache = jax.tree.map(lambda a, b: a[:, -1].astype(b.dtype), earlier, cache)
    is_causal = call.pattern.offsets() == Causal().offsets()
    # Followed by no keys of the query's segment, to drop sums over other segments.
    none = Sums(jnp.full_like(k, LOWEST), jnp.zeros_like(k), jnp.zeros_like(k), segments)
    sums = earlier.at(-self.reach).then(none)
    if not is_causal:
      later = running(own, reverse=True).at(max(self.reach, 1)).then(none)
      sums = sums.then(later)
    if self.reach:
      sums = self._add_window(sums, k, v, segments, tokens, is_causal)
    return sums.average(), cache

  @token_sums()
  def _add_window(
    self, sums: Sums, k: Array, v: Array, segments: Array, tokens: Tokens, is_causal: bool
  ) -> Sums:
    """Adds the tokens at distances below `reach`, with their biases."""
    reach, index = min(self.reach, k.shape[1]), jnp.arange(k.shape[1])[None]
    offsets = jnp.arange(1 - reach, 1 if is_causal else reach)

    def scores(k: Array, offset: Array) -> Array:
      logits = jnp.roll(k, -offset, axis=1) + self.at_offset(offset, tokens)[..., None]
      visible = (index + offset >= 0) & (index + offset < k.shape[1]) & (segments != 0)
      visible &= jnp.roll(segments, -offset, axis=1) == segments
      return jnp.where(visible[..., None, None], logits, -jnp.inf)

    def largest(maximum: Array, offset: Array) -> tuple[Array, None]:
      return jnp.maximum(maximum, jax.lax.stop_gradient(scores(k, offset))), None

    maximum, _ = jax.lax.scan(largest, sums.maximum, offsets)
    maximum = jax.lax.stop_gradient(maximum)
    scale = jnp.exp(sums.maximum - maximum)

    # Recomputed in the backward pass, whose memory then does not grow with the window.
    @jax.checkpoint
    def added(pair: tuple[Array, Array], offset: Array) -> tuple[tuple[Array, Array], None]:
      weights = jnp.exp(scores(k, offset) - maximum)
      return (pair[0] + weights, pair[1] + weights * jnp.roll(v, -offset, axis=1)), None

    pair, _ = jax.lax.scan(added, (scale * sums.weights, scale * sums.values), offsets)
    return Sums(maximum, *pair, sums.segment)


class NoBias(_Windowed):
  """No position biases: AFT-simple, whose causal form is a recurrence with a state of fixed size.

  Args:
    num_heads: does not change the result; the tensor axis of a mesh must divide it.
  """

  def __init__(self, num_heads: Size, *, rngs: nnx.Rngs):
    pass

  def init_cache(self, batch: int, heads: int, head_dim: int) -> Sums:
    """Returns the sums over no token."""
    return Sums.empty(batch, heads, head_dim)


class LocalBias(_Windowed):
  """AFT-local: a learned w_tt' for each pair of positions at a distance below `window`, else 0.

  Farther tokens are visible, too. Under Causal() the biases of later keys are not used.

  Args:
    num_heads: number of groups of features.
    max_length: maximum sequence length.
    window: smallest distance without a bias (s in the paper).
    init: initialiser of the biases [max_length, 2 window - 1, num_heads], for each query by distance of the key.
  """

  def __init__(
    self,
    num_heads: Size,
    *,
    max_length: Size,
    window: Size = 32,
    init: Initializer = normal(0.01),
    rngs: nnx.Rngs,
  ):
    self.max_length, self.reach = max_length, window
    shape, axes = (max_length, 2 * window - 1, num_heads), ('length', 'taps', 'heads')
    self.table = param(init, shape, axes, rngs, kind='table', keep_float32=True)

  def at_offset(
    self, offset: Int[Array, ''], tokens: Tokens
  ) -> Float[Array, '#batch #length heads']:
    """Returns the biases at the positions of the queries."""
    column = jnp.take(self.table[...], offset + self.reach - 1, axis=1)
    return rows_at(column, tokens.positions, 'LocalBias.max_length')


class ConvBias(_Windowed):
  """AFT-conv: a learned w that depends on the distance t' - t if it is below `window`, else 0.

  Farther tokens are visible, too. Under Causal() the biases of later keys are not used. The paper also normalises the
  biases of each group; here they are free.

  Args:
    num_heads: number of groups of features.
    window: smallest distance without a bias.
    init: initialiser of the biases [2 window - 1, num_heads].
  """

  def __init__(
    self,
    num_heads: Size,
    *,
    window: Size = 32,
    init: Initializer = normal(0.01),
    rngs: nnx.Rngs,
  ):
    self.reach = window
    shape, axes = (2 * window - 1, num_heads), ('taps', 'heads')
    self.table = param(init, shape, axes, rngs, kind='table', keep_float32=True)

  def at_offset(
    self, offset: Int[Array, ''], tokens: Tokens
  ) -> Float[Array, '#batch #length heads']:
    """Returns the biases of the distance."""
    return jnp.take(self.table[...], offset + self.reach - 1, axis=0)[None, None]
