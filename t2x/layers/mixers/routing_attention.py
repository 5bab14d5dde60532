"""Routing attention (Roy et al. 2020, https://arxiv.org/abs/2003.05997): attention inside clusters of queries and
keys, whose centroids are learned."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.hyperparameters import scalar
from t2x.base.ranges import Size, TunableNonNegative, TunableRate
from t2x.layers.attention.groups import HIDDEN, HeadRows, attend_in_groups
from t2x.layers.attention.head_projections import (
  HeadProjections,
  Hidden,
  check_one_segment,
  nan_for_several_segments,
)
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.caches import Cache
from t2x.layers.dtypes import exact_einsum
from t2x.layers.initializers import width_normal
from t2x.layers.interfaces import Aux, Call, Result
from t2x.layers.parameters import dropout, param

__all__ = ['RoutingAttention']

Similarity = Float[Array, 'batch heads clusters length']
# Indices of tokens.
Members = Int[Array, 'batch heads clusters window']


class RoutingAttention(HeadProjections):
  """Attention from the queries of each cluster to its keys.

  The members of a cluster are the `window` queries and the `window` keys of the row with the largest cosine
  similarity to its centroid. The outputs of a query in several clusters are averaged; the output of a query in
  none is 0, so only the residual stream carries it. With about sqrt(length) clusters of length / clusters
  members, time and memory are proportional to length^1.5.

  The centroids are parameters, which the auxiliary loss 'commitment' trains: `commitment` times the mean square
  of the difference between each unit query or key and its most similar unit centroid. The paper updates them
  by a running average. The metric 'unrouted_queries' is the fraction of queries in no cluster.

  Under Causal() a token attends to itself and to the `window` tokens before it in its segment whose queries have
  the same most similar centroid. The paper selects the members of a cluster from the full row and then hides later
  tokens, which still decide which earlier tokens are members.

  Under Full() all tokens of a row compete for the places in a cluster, so a row must be one segment with
  positions from 0 (`Tokens.row`), and the output is NaN for rows with several segments, because segments are only
  available at run time. Under Causal() tokens of a segment must be in the order of their positions. Decoding token
  by token is not supported.

  Args:
    num_clusters: number of clusters per head.
    window: number of queries, and of keys, per cluster; at most the length of the row is used. The paper uses
      length / num_clusters.
    commitment: coefficient of the auxiliary loss.
    dropout_rate: dropout of the attention probabilities.
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `HeadProjections`; when called under Full(), the rows may hold several segments.
  """

  uses_rows = 'clusters all tokens of a row'

  def __init__(
    self,
    d_model: int,
    *,
    num_clusters: Size,
    window: Size,
    commitment: TunableNonNegative = 1e-4,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, rngs=rngs, **settings)
    self.window, self.commitment, self.dropout_rate = window, commitment, dropout_rate
    shape, axes = (self.num_heads, num_clusters, self.head_dim), ('heads', 'clusters', 'head_dim')
    init = width_normal(self.head_dim)
    self.centroids = param(init, shape, axes, rngs, kind='vector', keep_float32=True)

  def __call__(self, x: Hidden, call: Call, cache: Cache | None = None) -> Result:
    """Attends from the queries of each cluster of `x` to its keys."""
    is_causal = self.check_call(call)
    q, k, v = (a.swapaxes(1, 2) for a in self.rows(x))
    present = jnp.broadcast_to(call.tokens.present, x.shape[:2])
    q_similarity, k_similarity = self._similarity(q), self._similarity(k)
    distance = squared_distance(q_similarity, k_similarity, present)
    losses = {'commitment': scalar(self.commitment) / self.head_dim * distance}
    q = q * self.head_dim**-0.5
    if is_causal:
      y = self._attend_to_recent(q, k, v, q_similarity, call)
      return Result(self.output(y.swapaxes(1, 2)), aux=Aux(losses))
    check_one_segment(self, call.tokens)
    queries, keys = (members(s, present, self.window) for s in (q_similarity, k_similarity))
    y = self._attend_to_members(q, k, v, queries, keys, present, call.key)
    y, is_routed = mean_by_token(y, queries, x.shape[1])
    y = nan_for_several_segments(y.swapaxes(1, 2), call.tokens)
    unrouted = (present[:, None] & ~is_routed).sum(dtype=jnp.float32)
    total = self.num_heads * present.sum(dtype=jnp.float32)
    aux = Aux(losses, {'unrouted_queries': (unrouted, total)})
    return Result(self.output(y), aux=aux)

  def _similarity(self, x: HeadRows) -> Similarity:
    """Returns the cosine similarity of queries or keys to each centroid."""
    dtype = softmax_dtype(x)
    centroids = unit(self.centroids[...].astype(dtype))
    return exact_einsum('bhld,hcd->bhcl', unit(x.astype(dtype)), centroids)

  def _attend_to_recent(
    self, q: HeadRows, k: HeadRows, v: HeadRows, similarity: Similarity, call: Call
  ) -> HeadRows:
    """Attends to the most recent tokens with the same most similar centroid."""
    groups = similarity.argmax(axis=2)[:, :, None]
    if call.tokens.segments is not None:
      groups = groups + similarity.shape[2] * call.tokens.segments[:, None, None, :]
    dropped: dict[str, Any] = {'dropout_rate': self.dropout_rate, 'key': call.key}
    return attend_in_groups(q, k, v, groups, self.window, is_causal=True, **dropped)

  def _attend_to_members(
    self,
    q: HeadRows,
    k: HeadRows,
    v: HeadRows,
    queries: Members,
    keys: Members,
    present: Bool[Array, 'batch length'],
    key: Array | None,
  ) -> Float[Array, 'batch heads clusters window head_dim']:
    """Returns the outputs of the queries of each cluster."""

    def take(a: Array, index: Array) -> Array:
      return jnp.take_along_axis(a[:, :, None], index[..., None], axis=3)

    scores = jnp.einsum(
      'bhcqd,bhckd->bhcqk', take(q, queries), take(k, keys), preferred_element_type=softmax_dtype(q)
    )
    visible = jnp.take_along_axis(present[:, None, None], keys, axis=3)
    scores = jnp.where(visible[..., None, :], scores, HIDDEN)
    probabilities = dropout(jax.nn.softmax(scores).astype(v.dtype), self.dropout_rate, key)
    return jnp.einsum('bhcqk,bhckd->bhcqd', probabilities, take(v, keys))


def unit(x: Float[Array, '*rest head_dim']) -> Float[Array, '*rest head_dim']:
  """Returns `x` divided by its Euclidean norm; 0 for 0."""
  return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12))


def members(similarity: Similarity, present: Bool[Array, 'batch length'], window: int) -> Members:
  """Returns the indices of the tokens that are most similar to each centroid, padding last."""
  similarity = jnp.where(present[:, None, None], similarity, -jnp.inf)
  return jax.lax.top_k(similarity, min(window, similarity.shape[-1]))[1]


def mean_by_token(
  y: Float[Array, 'batch heads clusters window head_dim'], index: Members, length: int
) -> tuple[HeadRows, Bool[Array, 'batch heads length']]:
  """Returns the mean over clusters of the outputs of each token, and whether it is in a cluster."""

  def add(y: Array, index: Array) -> tuple[Array, Array]:
    zeros = jnp.zeros((length, y.shape[-1]), y.dtype)
    index = index.reshape(-1)
    count = jnp.zeros(length, jnp.int32).at[index].add(1)
    return zeros.at[index].add(y.reshape(-1, y.shape[-1])), count

  total, count = jax.vmap(jax.vmap(add))(y, index)
  return total / jnp.maximum(count, 1)[..., None].astype(y.dtype), count > 0


def squared_distance(
  q_similarity: Similarity, k_similarity: Similarity, present: Bool[Array, 'batch length']
) -> Float[Array, ' batch']:
  """Returns the mean squared distance of unit queries and keys to their most similar unit centroid, which is
  2 - 2 times their cosine similarity."""
  nearest = 2 - q_similarity.max(axis=2) - k_similarity.max(axis=2)
  total = jnp.where(present[:, None], nearest, 0).sum((1, 2))
  return total / jnp.maximum(nearest.shape[1] * present.sum(axis=1), 1)
