"""Attention inside groups of tokens, such as those with the same hash, by sorting the row by group."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.parameters import Tunable, dropout

# Score of a hidden key.
HIDDEN = -1e9

HeadRows = Float[Array, 'batch heads length head_dim']


def attend_in_groups(
  q: HeadRows,
  k: HeadRows,
  v: HeadRows,
  groups: Int[Array, 'batch heads rounds length'],
  chunk: int,
  *,
  is_causal: bool,
  own_score: float | None = None,
  dropout_rate: Tunable = 0.0,
  key: Array | None = None,
) -> HeadRows:
  """Attends from each token to the nearest tokens of its group, in the order of the row.

  Several rounds are averaged with the weights of their softmax denominators. Which tokens are visible depends
  only on those between the query and the key, so that later tokens and other groups have no effect.

  Args:
    q: scaled queries.
    k: keys.
    v: values.
    groups: the group of each token in each round.
    chunk: maximum number of tokens of the group on each side of the query.
    is_causal: whether later tokens are hidden.
    own_score: score of a token for itself; None: q k'.
    dropout_rate: dropout of the attention probabilities.
    key: random keys of dropout as in `Call`; None: no dropout.
  """
  length = q.shape[2]
  chunk = min(chunk, length)
  padding = (0, 0), (0, 0), (0, -length % chunk)
  q, k, v = (jnp.pad(a, (*padding, (0, 0))) for a in (q, k, v))
  groups = jnp.pad(groups, ((0, 0), *padding), constant_values=-1)
  order = jnp.argsort(groups, axis=-1, stable=True)[..., None]
  q, k, v = (jnp.take_along_axis(a[:, :, None], order, axis=3) for a in (q, k, v))
  groups = jnp.take_along_axis(groups, order[..., 0], axis=-1)
  y, total = _attend_sorted(
    q,
    k,
    v,
    groups,
    chunk,
    is_causal=is_causal,
    own_score=own_score,
    dropout_rate=dropout_rate,
    key=key,
  )
  # Back to the order of the row.
  inverse = jnp.argsort(order, axis=3)
  y, total = (jnp.take_along_axis(a, inverse, axis=3) for a in (y, total))
  return (y * jax.nn.softmax(total, axis=2)).sum(axis=2)[:, :, :length].astype(v.dtype)


def _attend_sorted(
  q: Float[Array, 'batch heads rounds length head_dim'],
  k: Float[Array, 'batch heads rounds length head_dim'],
  v: Float[Array, 'batch heads rounds length head_dim'],
  groups: Int[Array, 'batch heads rounds length'],
  chunk: int,
  *,
  is_causal: bool,
  own_score: float | None,
  dropout_rate: Tunable,
  key: Array | None,
) -> tuple[
  Float[Array, 'batch heads rounds length head_dim'], Float[Array, 'batch heads rounds length 1']
]:
  """Returns the outputs and the logarithms of their softmax denominators, for tokens sorted by group."""
  # Chunks of keys that each chunk of queries can reach.
  reach = (-1, 0) if is_causal else (-1, 0, 1)

  def split(a: Array) -> Array:
    return a.reshape(*a.shape[:3], -1, chunk, *a.shape[4:])

  def reached(a: Array) -> Array:
    return jnp.concatenate([jnp.roll(split(a), -shift, axis=3) for shift in reach], axis=4)

  near, own, exists = _places(q.shape[3] // chunk, chunk, reach)
  visible = near & exists & (split(groups)[..., None] == reached(groups)[..., None, :])
  scores = jnp.einsum(
    'bhrcqd,bhrckd->bhrcqk', split(q), reached(k), preferred_element_type=softmax_dtype(q)
  )
  scores = jnp.where(visible, scores, HIDDEN)
  if own_score is not None:
    scores = jnp.where(own, own_score, scores)
  total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
  probabilities = dropout(jnp.exp(scores - total).astype(v.dtype), dropout_rate, key)
  y = jnp.einsum('bhrcqk,bhrckd->bhrcqd', probabilities, reached(v))
  return y.reshape(v.shape), total.reshape(*groups.shape, 1)


def _places(
  num_chunks: int, chunk: int, reach: tuple[int, ...]
) -> tuple[
  Bool[np.ndarray, '1 1 1 1 queries keys'],
  Bool[np.ndarray, '1 1 1 1 queries keys'],
  Bool[np.ndarray, '1 1 1 chunks 1 keys'],
]:
  """Returns which keys are near enough to a query in the sorted order, which is the query itself, and which
  exist: the first chunk has no chunk before it, and the last none after it."""
  k = np.arange(reach[0] * chunk, (reach[-1] + 1) * chunk)
  distance = (np.arange(chunk)[:, None] - k)[None, None, None, None]
  near = (distance <= chunk) & (distance >= -chunk * reach[-1])
  place = (np.arange(num_chunks)[:, None, None] * chunk + k)[None, None, None]
  return near, distance == 0, (place >= 0) & (place < num_chunks * chunk)
