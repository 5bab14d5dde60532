"""Linear attention (Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236): a feature map replaces the
softmax, so that a sum over earlier tokens summarises their keys and values."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.ranges import Size
from t2x.layers.attention.head_projections import HeadProjections
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.dtypes import Dtypes, exact_einsum
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Cache, Call, Result
from t2x.layers.mixers.feature_maps import CallFeatures, EluPlusOne, FeatureMap
from t2x.layers.parameters import Initializer
from t2x.layers.patterns.algebra import Causal, Full

__all__ = ['LinearAttention', 'LinearState']

# Lower bound of the normaliser, a sum of positive features that is 0 for padding or when they underflow.
EPSILON = 1e-6
# Normalisers of features with a scale are used down to this value, whose reciprocal has finite gradients.
TINY = 1e-25
# Scale of an empty sum: finite, because differences of scales are computed.
EMPTY = -1e30


class RecurrentState(Cache):
  """Base class of states whose size does not depend on the number of tokens."""

  def repeat(self, copies: int) -> 'RecurrentState':
    return jax.tree.map(lambda a: jnp.repeat(a, copies, axis=0), self)

  def take(self, rows: Int[Array, ' batch']) -> 'RecurrentState':
    return jax.tree.map(lambda a: a[rows], self)

  def share(self, copies: int, num_slots: int) -> 'RecurrentState':
    return self.repeat(copies)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearState(RecurrentState):
  """Sums over the earlier tokens of the last segment of each row.

  Attributes:
    sums: sum of exp(s - scale) f v' over features f and logarithms s of keys (see `FeatureMap.keys`) and their
      values v, [batch, heads, features, v_dim], in float32 or wider.
    segment: the segment of these tokens, int32 [batch]; 0: no token yet.
    scale: maximum of s over these tokens, [batch, heads]; unused by feature maps without s.
  """

  # Not annotated with shapes: a stack adds a leading dimension for its layers.
  sums: Any
  segment: Any
  scale: Any

  @staticmethod
  def empty(
    batch: int, heads: int, features: int, v_dim: int, dtype: Any = Dtypes.reductions
  ) -> 'LinearState':
    """Returns the state before the first token."""
    return LinearState(
      jnp.zeros((batch, heads, features, v_dim), dtype),
      jnp.zeros(batch, jnp.int32),
      jnp.full((batch, heads), EMPTY, dtype),
    )

  def astype(self, dtype: Any) -> 'LinearState':
    """Returns the state with sums and scale of this dtype."""
    return LinearState(self.sums.astype(dtype), self.segment, self.scale.astype(dtype))


class LinearAttention(HeadProjections):
  """Linear attention: phi(q) (sum phi(k) v') / (phi(q) sum phi(k)) over the visible keys.

  The pattern must be Full() or Causal(), tokens must be in the order of their positions, and the tokens of
  a segment must be contiguous except for padding. Time and memory are linear in the length: pairs of tokens
  are compared only within a chunk, and a state of fixed size is passed between chunks. Decoding caches this
  state instead of keys and values.

  Args:
    d_model: width of the input and output.
    num_heads: number of heads.
    features: builds the feature map phi: `EluPlusOne`, or `FavorPlus` for a Performer.
    head_dim: features per head. None: d_model / num_heads.
    chunk: tokens per chunk.
    use_bias: whether the query, key and value projections have biases.
    out_bias: whether the output projection has a bias.
    kernel_init: initialiser of the query, key and value projections.
    out_init: initialiser of the output projection. None: `kernel_init`.

  Raises:
    UserError: num_heads does not divide d_model and head_dim is None; when called, the call has a source or
      a pattern other than Full() and Causal(), or `features` refuses it.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    features: Callable[..., FeatureMap] = EluPlusOne,
    head_dim: Size | None = None,
    chunk: Size = 64,
    use_bias: bool = True,
    out_bias: bool = True,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model,
      num_heads=num_heads,
      head_dim=head_dim,
      use_bias=use_bias,
      out_bias=out_bias,
      kernel_init=kernel_init,
      out_init=out_init,
      rngs=rngs,
    )
    self.features = features(self.head_dim, rngs=rngs)
    self.chunk = chunk

  def init_cache(self, batch: int, num_slots: int, dtype: Any = jnp.float32) -> LinearState:
    """Returns an empty state, in float32 and of a size that does not depend on `num_slots`."""
    return LinearState.empty(batch, self.num_heads, self.features.num_features, self.head_dim + 1)

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: LinearState | None = None,
  ) -> Result:
    """Attends to the tokens of `x` and to the earlier tokens summarised in the cache.

    For tokens that see no token (padding) the input of the output projection is zero.
    """
    self.check_call(call, Full(), Causal())
    dtype = softmax_dtype(x)
    q, k, v = (a.astype(dtype) for a in self.project(x))
    features = self.features
    if isinstance(features, CallFeatures):
      features = features.at(call)
    q, (k, scale) = features.queries(q), features.keys(k)
    v = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
    y, cache = visible_sums(q, k, v, call, self.chunk, scale, cache)
    if scale is not None:
      # Numerators and denominators have a common factor, with which denominators can be below EPSILON.
      total = jax.lax.stop_gradient(y[..., -1:])
      y = y / jnp.where(total > TINY, total, 1)
    return Result(self._normalize(y, x.dtype), cache)

  def _normalize(
    self, y: Float[Array, 'batch length heads dim_and_one'], dtype: Any
  ) -> Float[Array, 'batch length d_model']:
    """Divides the numerators by the denominators, the last feature, and applies the output projection."""
    return self.output((y[..., :-1] / jnp.maximum(y[..., -1:], EPSILON)).astype(dtype))


def visible_sums(
  q: Float[Array, 'batch length heads features'],
  k: Float[Array, 'batch length heads features'],
  v: Float[Array, 'batch length heads v_dim'],
  call: Call,
  chunk: int,
  scale: Float[Array, 'batch length heads'] | None = None,
  state: LinearState | None = None,
) -> tuple[Float[Array, 'batch length heads v_dim'], LinearState | None]:
  """Computes sums over the tokens that each token sees under Full() or Causal().

  Args:
    q: features of the queries.
    k: features of the keys.
    v: values.
    call: its pattern is Full() or Causal().
    chunk: tokens per chunk.
    scale: logarithms s of factors of the keys' features; None: 0.
    state: state before the first token; None: no earlier tokens.

  Returns:
    The sum of exp(s_j - c_i) (q_i k_j) v_j over j for each i, where c_i is the maximum of s_j over j, and the
    state after the last token (None without `state`).
  """
  segments, is_causal = call.tokens.segments, call.pattern.offsets() == Causal().offsets()
  if segments is None and state is None and not is_causal:
    if scale is not None:
      k = k * jnp.exp(scale - scale.max(axis=1, keepdims=True))[..., None]
    sums = exact_einsum('bjhd,bjhe->bhde', k, v)
    return exact_einsum('bihd,bhde->bihe', q, sums), None
  segments = jnp.asarray(1 if segments is None else segments, jnp.int32)
  segments = jnp.broadcast_to(segments, q.shape[:2])
  empty = LinearState.empty(len(q), q.shape[2], q.shape[3], v.shape[3], q.dtype)
  start = empty if state is None else state.astype(q.dtype)
  y, top, end = causal_sums(q, k, v, segments, scale, start, chunk)
  if not is_causal:
    flip = functools.partial(jax.tree.map, lambda a: jnp.flip(a, 1))
    q, k, v, segments, scale = flip((q, k, v, segments, scale))
    later, later_top, _ = causal_sums(q, k, v, segments, scale, empty, chunk, includes_own=False)
    later, later_top = flip((later, later_top))
    if top is not None:
      highest = jnp.maximum(top, later_top)
      y = y * jnp.exp(top - highest)[..., None]
      later = later * jnp.exp(later_top - highest)[..., None]
    y = y + later
  return y, None if state is None else end.astype(state.sums.dtype)


def causal_sums(
  q: Float[Array, 'batch length heads features'],
  k: Float[Array, 'batch length heads features'],
  v: Float[Array, 'batch length heads v_dim'],
  segments: Int[Array, 'batch length'],
  scale: Float[Array, 'batch length heads'] | None,
  state: LinearState,
  chunk: int,
  *,
  includes_own: bool = True,
) -> tuple[
  Float[Array, 'batch length heads v_dim'], Float[Array, 'batch length heads'] | None, LinearState
]:
  """Computes sums over the earlier tokens of the same segment, chunk by chunk.

  Args:
    q: features of the queries.
    k: features of the keys.
    v: values.
    segments: segments of the tokens; 0 is padding, which the sums exclude.
    scale: logarithms s of factors of the keys' features; None: 0.
    state: state before the first token.
    chunk: tokens per chunk.
    includes_own: whether the sum of a token includes the token itself.

  Returns:
    The sum of exp(s_j - c_i) (q_i k_j) v_j over j for each i, the maximum c_i of s_j over j (None without s),
    and the state after the last token.
  """
  length = q.shape[1]
  chunk = min(chunk, length)
  before = jnp.tril(jnp.ones((chunk, chunk), bool), 0 if includes_own else -1)

  def join(a: Array) -> Array:
    a = jnp.moveaxis(a, 0, 1)
    return a.reshape(len(q), -1, *a.shape[3:])[:, :length]

  chunks = jax.tree.map(lambda a: chunked(a, chunk), (q, k, v, segments, scale))
  state, outputs = jax.lax.scan(functools.partial(_chunk, before), state, chunks)
  y, top = jax.tree.map(join, outputs)
  return y, top, state


def _chunk(
  before: Bool[Array, 'chunk chunk'],
  state: LinearState,
  inputs: tuple[
    Float[Array, 'batch chunk heads features'],
    Float[Array, 'batch chunk heads features'],
    Float[Array, 'batch chunk heads v_dim'],
    Int[Array, 'batch chunk'],
    Float[Array, 'batch chunk heads'] | None,
  ],
) -> tuple[
  LinearState,
  tuple[Float[Array, 'batch chunk heads v_dim'], Float[Array, 'batch chunk heads'] | None],
]:
  q, k, v, segments, scale = inputs
  is_token = segments != 0
  visible = before[None] & (segments[:, :, None] == segments[:, None, :]) & is_token[:, None, :]
  # The first tokens may continue the segment of the preceding chunks.
  continues = is_token & (segments == state.segment[:, None])
  last = last_segment(segments, state.segment)
  stays, own = last == state.segment, is_token & (segments == last[:, None])

  factors = _Factors()
  if scale is not None:
    factors = _factors(scale, state.scale, visible, continues, stays, own)
  scores = _weighted(exact_einsum('bihd,bjhd->bhij', q, k), visible[:, None], factors.pairs)
  y = exact_einsum('bhij,bjhe->bihe', scores, v)
  earlier = exact_einsum('bihd,bhde->bihe', q, state.sums)
  y = y + _weighted(earlier, continues[..., None, None], factors.earlier)
  k = _weighted(k, own[..., None, None], factors.keys)
  sums = _weighted(state.sums, stays[:, None, None, None], factors.sums)
  sums = sums + exact_einsum('bjhd,bjhe->bhde', k, v)
  end = state.scale if factors.end is None else factors.end
  return LinearState(sums, last, end), (y, factors.top)


@dataclasses.dataclass(frozen=True)
class _Factors:
  """Logarithms of the factors of the sums of a chunk (None: 0), for keys with factors exp(s).

  Attributes:
    pairs: s_j - top_i, [batch, heads, queries, keys].
    earlier: scale of the state - top_i, [batch, queries, heads, 1].
    keys: s_j - end, [batch, keys, heads, 1].
    sums: scale of the state - end, [batch, heads, 1, 1].
    top: maximum of s_j over the keys that query i sees, [batch, queries, heads].
    end: scale of the state after the chunk, [batch, heads].
  """

  pairs: Array | None = None
  earlier: Array | None = None
  keys: Array | None = None
  sums: Array | None = None
  top: Array | None = None
  end: Array | None = None


def _factors(
  scale: Float[Array, 'batch chunk heads'],
  start: Float[Array, 'batch heads'],
  visible: Bool[Array, 'batch chunk chunk'],
  continues: Bool[Array, 'batch chunk'],
  stays: Bool[Array, ' batch'],
  own: Bool[Array, 'batch chunk'],
) -> _Factors:
  """Returns the factors with which no sum of a query depends on a key that the query does not see."""
  keys = scale.swapaxes(1, 2)[:, :, None]
  top = jnp.where(visible[:, None], keys, EMPTY).max(axis=-1).swapaxes(1, 2)
  top = jnp.maximum(top, jnp.where(continues[..., None], start[:, None], EMPTY))
  end = jnp.where(own[..., None], scale, EMPTY).max(axis=1)
  end = jnp.maximum(end, jnp.where(stays[:, None], start, EMPTY))
  return _Factors(
    pairs=keys - top.swapaxes(1, 2)[..., None],
    earlier=(start[:, None] - top)[..., None],
    keys=(scale - end[:, None])[..., None],
    sums=(start - end)[..., None, None],
    top=top,
    end=end,
  )


def _weighted(x: Array, mask: Bool[Array, '...'], log_factor: Array | None) -> Array:
  """Returns x exp(log_factor) where the mask holds, and 0 elsewhere."""
  x = jnp.where(mask, x, 0)
  return x if log_factor is None else x * jnp.exp(jnp.where(mask, log_factor, -jnp.inf))


def chunked(a: Array, chunk: int) -> Array:
  """Pads `a` [batch, length, ...] with zeros and splits it to [chunks, batch, chunk, ...]."""
  a = jnp.pad(a, ((0, 0), (0, -a.shape[1] % chunk), *[(0, 0)] * (a.ndim - 2)))
  return jnp.moveaxis(a.reshape(len(a), -1, chunk, *a.shape[2:]), 1, 0)


def last_segment(
  segments: Int[Array, 'batch length'], default: Int[Array, ' batch']
) -> Int[Array, ' batch']:
  """Returns the segment of the last token of each row; `default` for rows of padding."""
  index = jnp.max(jnp.where(segments != 0, jnp.arange(segments.shape[1]), -1), axis=1)
  last = jnp.take_along_axis(segments, jnp.maximum(index, 0)[:, None], axis=1)[:, 0]
  return jnp.where(index < 0, default, last)
