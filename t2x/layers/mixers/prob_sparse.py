"""Attention of the queries that differ most between keys (ProbSparse, Informer: Zhou et al. 2021, https://arxiv.org/abs/2012.07436)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t2x.base.ranges import Size
from t2x.layers.attention.head_projections import HeadFeatures, Hidden, WholeRow
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.interfaces import Call
from t2x.layers.patterns.algebra import Full

__all__ = ['ProbSparseAttention']


class ProbSparseAttention(WholeRow):
  """Self-attention of u = min(length, factor * ceil(ln(length + 1))) queries of each head; all other queries output the
  mean of the values.

  The queries with the largest M = max over keys of the scores - their mean attend. M is measured with all keys, whose
  scores take time quadratic in the length; the authors' code draws a sample of keys. Each token attends to all tokens
  of its row; see `WholeRow`.

  Args:
    factor: see above.
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `WholeRow`; when called, the pattern is not Full(): the choice of queries depends on the whole row.
  """

  patterns = (Full(),)
  uses_rows = 'chooses queries among all tokens of a row at once'

  def __init__(self, d_model: int, *, factor: Size = 5, rngs: nnx.Rngs, **settings: Any):
    super().__init__(d_model, rngs=rngs, **settings)
    self.factor = factor

  def mix(self, x: Hidden, call: Call, is_causal: bool) -> HeadFeatures:
    """Attends from the chosen tokens of `x` to all of its tokens."""
    q, k, v = (jnp.swapaxes(a, 1, 2) for a in self.project(x))
    length, is_token = x.shape[1], call.tokens.present[:, None]
    count = is_token.sum(axis=-1, keepdims=True)
    scores = jnp.einsum('bhqd,bhkd->bhqk', q, k, preferred_element_type=softmax_dtype(q))
    scores = scores * self.head_dim**-0.5
    lowest = jnp.finfo(scores.dtype).min
    largest = jnp.where(is_token[:, :, None], scores, lowest).max(axis=-1)
    mean = jnp.where(is_token[:, :, None], scores, 0).sum(axis=-1) / jnp.maximum(count, 1)
    # The largest number of queries; `number` is that of the tokens of each row, without padding.
    largest_number = min(length, self.factor * math.ceil(math.log1p(length)))
    number = jnp.minimum(count, self.factor * jnp.ceil(jnp.log1p(count.astype(jnp.float32))))
    _, chosen = jax.lax.top_k(jnp.where(is_token, largest - mean, lowest), largest_number)
    rows = jnp.take_along_axis(scores, chosen[..., None], axis=2)
    weights = jax.nn.softmax(jnp.where(is_token[:, :, None], rows, lowest))
    means = jnp.where(is_token[..., None], v, 0).sum(axis=2, keepdims=True)
    means = means / jnp.maximum(count, 1)[..., None].astype(v.dtype)
    y = jnp.broadcast_to(means, v.shape)
    attended = jnp.einsum('bhuk,bhkd->bhud', weights.astype(v.dtype), v)
    is_active = jnp.arange(largest_number)[None, None] < number
    attended = jnp.where(is_active[..., None], attended, means)
    y = jax.vmap(jax.vmap(lambda y, at, new: y.at[at].set(new)))(y, chosen, attended)
    return jnp.swapaxes(y, 1, 2)
