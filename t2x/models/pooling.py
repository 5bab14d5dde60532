"""Vectors of rows: of the first or the last token, the mean over tokens, or attention of a learned query."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.layers import (
  MLP,
  Call,
  FromSource,
  Initializer,
  LayerNorm,
  MultiHeadAttention,
  Norm,
  SourceSequence,
  Sublayer,
  Tokens,
  named_key,
  normal,
  param,
)
from t2x.layers.products import broadcast
from t2x.models.interfaces import Pooling, RowSegments

__all__ = ['AttentionPool', 'first_token', 'last_token', 'mean_tokens']


def first_token(d_model: int, *, rngs: nnx.Rngs) -> Pooling:
  """Returns the vector of the first token (the class token)."""
  return _first


def last_token(d_model: int, *, rngs: nnx.Rngs) -> Pooling:
  """Returns the vector of the last non-padding token, which in a causal body depends on all tokens."""
  return _last


def mean_tokens(d_model: int, *, rngs: nnx.Rngs) -> Pooling:
  """Returns the mean over all non-padding tokens (Sentence-BERT, https://arxiv.org/abs/1908.10084)."""
  return mean_over_tokens


def _first(x: Array, segments: RowSegments = None, key: Array | None = None) -> Array:
  return x[:, 0]


def _last(x: Array, segments: RowSegments = None, key: Array | None = None) -> Array:
  if segments is None:
    return x[:, -1]
  indices = jnp.arange(x.shape[1])
  last = jnp.where(segments != 0, indices, 0).max(axis=1)
  return jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]


def mean_over_tokens(
  x: Float[Array, 'batch length d_model'], segments: RowSegments = None, key: Array | None = None
) -> Float[Array, 'batch d_model']:
  """Returns the mean over all tokens whose segment is not 0."""
  if segments is None:
    return x.mean(axis=1)
  present = (segments != 0).astype(x.dtype)
  total = jnp.einsum('bld,bl->bd', x, present, preferred_element_type=jnp.float32)
  # Counted as integers: bfloat16 cannot count beyond 256.
  count = jnp.maximum(jnp.count_nonzero(segments, axis=1), 1)
  return (total / count[:, None]).astype(x.dtype)


class AttentionPool(nnx.Module):
  """Attention of a learned query to all tokens, y, plus an MLP: y + MLP(norm(y)) (Set Transformer,
  https://arxiv.org/abs/1810.00825; as in SigLIP, https://arxiv.org/abs/2303.15343).

  Args:
    d_model: width of the tokens.
    attention: builds the attention.
    norm: builds the norm before the MLP.
    feed_forward: builds the MLP.
    init: initialiser of the query.
  """

  implements = (Pooling,)

  def __init__(
    self,
    d_model: int,
    *,
    attention: Callable[..., Sublayer] = MultiHeadAttention,
    norm: Callable[..., Norm] = LayerNorm,
    feed_forward: Callable[..., Sublayer] = MLP,
    init: Initializer = normal(1.0),
    rngs: nnx.Rngs,
  ):
    self.query = param(init, (d_model,), ('embed',), rngs, kind='vector')
    self.attention = FromSource(d_model, sublayer=attention, rngs=rngs)
    self.norm = norm(d_model, rngs=rngs)
    self.feed_forward = feed_forward(d_model, rngs=rngs)

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    segments: RowSegments = None,
    key: Array | None = None,
  ) -> Float[Array, 'batch d_model']:
    """Returns the vectors of the rows; tokens of segment 0 are padding."""
    query, tokens = Tokens.row(1), Tokens.row(x.shape[1])
    if segments is not None:
      # All tokens of a row are one segment.
      query = Tokens.row(1, segments=jnp.ones((1, 1), jnp.int32))
      tokens = Tokens.row(x.shape[1], segments=(segments != 0).astype(jnp.int32))
    first = broadcast(self.query[...], (len(x), 1, x.shape[-1]), x.dtype)
    call = Call(query, key=named_key(key, 'attention'), source=SourceSequence(x, tokens))
    y = self.attention(first, call).x
    call = Call(query, key=named_key(key, 'feed_forward'))
    return (y + self.feed_forward(self.norm(y), call).x)[:, 0]
