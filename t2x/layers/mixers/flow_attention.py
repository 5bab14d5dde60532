"""Flow attention (Flowformer, Wu et al. 2022, https://arxiv.org/abs/2202.06258): linear attention in which keys
compete for a conserved flow from keys to queries."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.head_projections import HeadFeatures, HeadProjections, Hidden
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.caches import RecurrentState
from t2x.layers.interfaces import Call, Result, SourceSequence
from t2x.layers.mixers.linear_attention import visible_sums
from t2x.layers.mixers.recurrence import LinearState

__all__ = ['FlowAttention']

# Added to features and their sums, as in the authors' code; also the lower bound of a sum that is 0 for padding.
EPSILON = 1e-6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FlowState(RecurrentState):
  """Sums over the earlier tokens of the last segment of each row.

  Attributes:
    stages: the `LinearState` of each of the four sums, in the order in which they are computed.
  """

  stages: tuple[Any, ...]


class FlowAttention(HeadProjections):
  """Linear attention in which keys compete for a conserved flow (https://arxiv.org/abs/2202.06258).

  With features q_i and k_j, the sigmoids of queries and keys, the incoming flow of a query is
  I_i = q_i sum_j k_j', and the outgoing flow of a key is O_j = k_j sum_i q_i'. Conserved flows are
  S_i = q_i sum_j k_j' / O_j and T_j = k_j sum_i q_i' / I_i. The output is sigmoid(S_i) (q_i / I_i) sum_j k_j' w_j v_j,
  where w = n softmax(T) with T limited to [-1, 1]. The sums are over the n tokens that the token itself sees.
  Under Causal() n depends on the token; I and O are therefore divided by n, and S and T as well, as in the authors'
  code.

  The pattern must be Full() or Causal(), tokens must be in the order of their positions, and the tokens of
  a segment must be contiguous except for padding. Time and memory are linear in the length, as in
  `LinearAttention`. Decoding, under Causal(), caches sums of a fixed size.

  Args:
    chunk: tokens per chunk.
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `HeadProjections`; when called, there is a cache under Full().
  """

  def __init__(self, d_model: int, *, chunk: Size = 64, rngs: nnx.Rngs, **settings: Any):
    super().__init__(d_model, rngs=rngs, **settings)
    self.chunk = chunk

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> FlowState:
    """Returns an empty state, in float32 and of a size that does not depend on `num_slots`."""
    dim = self.head_dim
    # Keys, queries and their number; keys and queries divided by flows; competition; keys times values.
    sizes = (1, 2 * dim + 1), (1, 2 * dim), (1, 1), (dim, dim)
    return FlowState(tuple(LinearState.empty(batch, self.num_heads, *size) for size in sizes))

  def __call__(self, x: Hidden, call: Call, cache: FlowState | None = None) -> Result:
    """Attends to the tokens of `x` and to the earlier tokens summarised in the cache.

    For tokens that see no token (padding) the input of the output projection is zero.
    """
    if not self.check_call(call) and cache is not None:
      raise UserError(
        'FlowAttention decodes only under Causal(), because its flows depend on all visible tokens: use the '
        'pattern Causal(), or LinearAttention'
      )
    dtype = softmax_dtype(x)
    q, k, v = (a.astype(dtype) for a in self.project(x))
    q, k = jax.nn.sigmoid(q), jax.nn.sigmoid(k)
    unit = jnp.ones_like(q[..., :1])
    stages: list[Any] = [None] * 4 if cache is None else list(cache.stages)

    def visible(stage: int, q: Array, k: Array, v: Array) -> Array:
      y, stages[stage] = visible_sums(q, k, v, call, self.chunk, state=stages[stage])
      return y

    sums = visible(0, unit, unit, jnp.concatenate([k, q, unit], axis=-1))
    keys, queries, count = jnp.split(sums, [self.head_dim, 2 * self.head_dim], axis=-1)
    # Padding sees no token.
    count = jnp.maximum(count, 1)
    incoming, outgoing = _flow(q, keys) / count, _flow(k, queries) / count
    sums = visible(1, unit, unit, jnp.concatenate([k / outgoing, q / incoming], axis=-1))
    keys, queries = jnp.split(sums, 2, axis=-1)
    allocation = jax.nn.sigmoid(_flow(q, keys) / count)
    competition = jnp.exp(jnp.clip(_flow(k, queries) / count, -1, 1))
    sums = visible(2, unit, unit, competition)
    weights = count * competition / jnp.maximum(sums, EPSILON)
    y = visible(3, q / (incoming * count), k, weights * v)
    new = None if cache is None else FlowState(tuple(stages))
    return Result(self.output((allocation * y).astype(x.dtype)), new)


def _flow(a: HeadFeatures, sums: HeadFeatures) -> Float[Array, 'batch length heads 1']:
  """Returns the flow between the features of each token and a sum of features."""
  return ((a + EPSILON) * (sums + EPSILON)).sum(axis=-1, keepdims=True)
