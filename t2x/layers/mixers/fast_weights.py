"""Fast weights (Schlag et al. 2021, https://arxiv.org/abs/2102.11174): linear attention whose state is corrected
by the delta rule."""

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
from t2x.layers.dtypes import Dtypes
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Result, SourceSequence
from t2x.layers.mixers.feature_maps import DPFP, FeatureMap, features_of
from t2x.layers.mixers.gated_delta import gated_delta_rule
from t2x.layers.mixers.recurrence import LinearState
from t2x.layers.parameters import Initializer, Linear
from t2x.layers.patterns.algebra import Causal

__all__ = ['FastWeights']

# Lower bound of the sum of the features of a query or key.
EPSILON = 1e-6


class FastWeights(HeadProjections):
  """Fast weights with the delta rule: W_t = W_{t-1} + beta_t (v_t - W_{t-1} f(k_t)) f(k_t)', with the output
  W_t f(q_t) / sqrt(head_dim).

  f divides the features of a query or key by their sum, without which the weights grow (section 4.2), and beta =
  sigmoid(x w) is one number per head. `GatedDeltaNet` adds decay, convolution, norm and gate. The pattern must be
  Causal(), tokens must be in the order of their positions, and the tokens of a segment must be contiguous except for
  padding. Decoding caches the weights; time is linear in the length.

  Args:
    features: builds the feature map.
    chunk: tokens per chunk; see `gated_delta_rule`.
    beta_init: initialiser of w.
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `HeadProjections`; when called, `features` refuses the call.
  """

  patterns = (Causal(),)

  def __init__(
    self,
    d_model: int,
    *,
    features: Callable[..., FeatureMap] = DPFP,
    chunk: Size = 64,
    beta_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, rngs=rngs, **settings)
    self.features = features(self.head_dim, rngs=rngs)
    self.chunk = chunk
    axes, heads = ('embed', 'heads'), (self.num_heads,)
    self.beta = Linear((d_model,), heads, axes, init=beta_init, use_bias=False, rngs=rngs)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> LinearState:
    """Returns weights of 0, in float32 and of a size that does not depend on `num_slots`."""
    return self._empty(batch, Dtypes.reductions)

  def _empty(self, batch: int, dtype: DTypeLike) -> LinearState:
    shape = batch, self.num_heads, self.features.num_features, self.head_dim
    return LinearState(jnp.zeros(shape, dtype), jnp.zeros(batch, jnp.int32))

  def __call__(self, x: Hidden, call: Call, cache: LinearState | None = None) -> Result:
    """Reads from the weights that the tokens of the cache and of `x` wrote; padding leaves them unchanged."""
    self.check_call(call)
    dtype = softmax_dtype(x)
    q, k, v = (a.astype(dtype) for a in self.project(x))
    features = features_of(self.features, call)
    # Factors of the features of a token cancel.
    q, k = _normalized(features.queries(q)), _normalized(features.keys(k)[0])
    beta = jax.nn.sigmoid(self.beta(x).astype(dtype))
    segments = jnp.broadcast_to(call.tokens.row_segments, x.shape[:2])
    state = self._empty(len(x), dtype) if cache is None else cache.astype(dtype)
    logs = jnp.zeros_like(beta)  # Without decay.
    y, state = gated_delta_rule(q, k, v, logs, beta, segments, state, self.chunk)
    y = self.output((y * self.head_dim**-0.5).astype(x.dtype))
    return Result(y, None if cache is None else state.astype(cache.sums.dtype))


def _normalized(
  features: Float[Array, '*rest features'],
) -> Float[Array, '*rest features']:
  """Divides features by their sum."""
  return features / jnp.maximum(features.sum(axis=-1, keepdims=True), EPSILON)
