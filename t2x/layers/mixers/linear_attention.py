"""Linear attention (Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236): a feature map replaces the
softmax, so that a sum over earlier tokens summarises their keys and values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.ranges import Size
from t2x.layers.attention.head_projections import HeadProjections, Hidden
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.dtypes import exact_einsum
from t2x.layers.interfaces import Call, Result, SourceSequence
from t2x.layers.mixers.feature_maps import EluPlusOne, FeatureMap, features_of
from t2x.layers.mixers.recurrence import (
  Decay,
  Inputs,
  LinearState,
  constant,
  recurrence,
  relative_to_maximum,
)
from t2x.layers.patterns.algebra import Causal

__all__ = ['LinearAttention']

# Lower bound of the normaliser, a sum of positive features that is 0 for padding or when they underflow.
EPSILON = 1e-6
# Normalisers of features with a scale are used down to this value, whose reciprocal has finite gradients.
TINY = 1e-25


class LinearAttention(HeadProjections):
  """Linear attention: phi(q) (sum phi(k) v') / (phi(q) sum phi(k)) over the visible keys.

  The pattern must be Full() or Causal(), tokens must be in the order of their positions, and the tokens of
  a segment must be contiguous except for padding. Time and memory are linear in the length: pairs of tokens
  are compared only within a chunk, and a state of fixed size is passed between chunks. Decoding caches this
  state instead of keys and values.

  Args:
    features: builds the feature map phi: `EluPlusOne`, or `FavorPlus` for a Performer.
    chunk: tokens per chunk.
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `HeadProjections`; when called, `features` refuses the call.
  """

  def __init__(
    self,
    d_model: int,
    *,
    features: Callable[..., FeatureMap] = EluPlusOne,
    chunk: Size = 64,
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, rngs=rngs, **settings)
    self.features = features(self.head_dim, rngs=rngs)
    self.chunk = chunk

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> LinearState:
    """Returns an empty state, in float32 and of a size that does not depend on `num_slots`."""
    return LinearState.empty(batch, self.num_heads, self.features.num_features, self.head_dim + 1)

  def __call__(self, x: Hidden, call: Call, cache: LinearState | None = None) -> Result:
    """Attends to the tokens of `x` and to the earlier tokens summarised in the cache.

    For tokens that see no token (padding) the input of the output projection is zero. It is NaN for tokens whose
    products of features with those of all keys underflow (see `FavorPlus`).
    """
    self.check_call(call)
    dtype = softmax_dtype(x)
    q, k, v = (a.astype(dtype) for a in self.project(x))
    features = features_of(self.features, call)
    q, (k, scale) = features.queries(q), features.keys(k)
    v = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
    y, cache = visible_sums(q, k, v, call, self.chunk, scale, cache)
    if scale is not None:
      # Numerators and denominators have a common factor, with which denominators can be below EPSILON.
      total, is_token = jax.lax.stop_gradient(y[..., -1:]), call.tokens.present[..., None, None]
      # A token sees itself: its denominator is positive unless the products of features underflow.
      y = y / jnp.where(total > TINY, total, jnp.where(is_token, jnp.nan, 1))
    y = y[..., :-1] / jnp.maximum(y[..., -1:], EPSILON)
    return Result(self.output(y.astype(x.dtype)), cache)


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
  length = q.shape[1]
  inputs = Inputs(q, k, v, jnp.broadcast_to(call.tokens.row_segments, q.shape[:2]), scale)
  empty = LinearState.empty(len(q), q.shape[2], q.shape[3], v.shape[3], q.dtype)
  start = empty if state is None else state.astype(q.dtype)
  decay: Decay = constant if scale is None else relative_to_maximum
  size = min(chunk, length)
  y, top, end = recurrence(inputs.split(size), start, decay)
  y, top = jax.tree.map(lambda a: a[:, :length], (y, top))
  if not is_causal:
    reverse = jax.tree.map(lambda a: jnp.flip(a, 1), inputs).split(size)
    later = recurrence(reverse, empty, decay, includes_own=False)[:2]
    later, later_top = jax.tree.map(lambda a: jnp.flip(a[:, :length], 1), later)
    if top is not None:
      highest = jnp.maximum(top, later_top)
      y = y * jnp.exp(top - highest)[..., None]
      later = later * jnp.exp(later_top - highest)[..., None]
    y = y + later
  return y, None if state is None else end.astype(state.sums.dtype)
