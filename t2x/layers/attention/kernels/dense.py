"""Reference attention kernel (Vaswani et al. 2017, arXiv:1706.03762) with grouped query heads (Ainslie et al.
2023, arXiv:2305.13245)."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from t2x.layers.attention.kernels.base import (
  ATTENTION_OUTPUT,
  AttentionInputs,
  DotProduct,
  Kernel,
  Logits,
  apply_soft_cap,
  attention_mask,
  softmax_dtype,
  zero_masked_queries,
)
from t2x.layers.counting import pair_products
from t2x.layers.parameters import dropout
from t2x.layers.products import merged_attention, on_one_cpu

__all__ = ['Dense']


@jax.custom_jvp
def softmax(scores: Float[Array, '*rest keys']) -> Float[Array, '*rest keys']:
  """Softmax over the last dimension, whose gradient reads only the probabilities.

  `jax.nn.softmax` differentiates the division, which saves two more arrays of the size of the scores.
  """
  return jax.nn.softmax(scores)


@softmax.defjvp
def _softmax_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  probabilities, tangent = softmax(*primals), tangents[0]
  mean = (probabilities * tangent).sum(axis=-1, keepdims=True)
  return probabilities, probabilities * (tangent - mean)


@dataclasses.dataclass(frozen=True)
class Dense(Kernel):
  """Attention with the dense matrix of scores, in O(q_len k_len) memory. Supports all inputs."""

  def supports(self, inputs: AttentionInputs) -> str | None:
    return None

  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    v, scores = inputs.v, inputs.scores
    if isinstance(scores, DotProduct) and _can_merge(scores, inputs):
      added, mask = self._added(inputs)
      q = _grouped_queries(scores.q, inputs.num_heads // v.shape[2])
      # The compiler would not merge products of bfloat16.
      wide = (x.astype(inputs.dtype) for x in (q, scores.k, v))
      out = _merged_attention(scores.scale, *wide, added)
      out = _by_query(out, inputs).astype(v.dtype)
    else:
      probabilities, mask = self._grouped_probabilities(inputs)
      probabilities = dropout(probabilities.astype(v.dtype), inputs.dropout_rate, inputs.key)
      probabilities, of_memory = jnp.split(probabilities, [inputs.k_len], axis=-1)
      # With the heads before the queries in the result, XLA's CPU backend transposes no operand.
      with pair_products():
        out = jnp.einsum('bhqk,bkhd->bhqd', probabilities, v)
      if inputs.memory is not None:
        # Queries that see no token see the memory.
        out, mask = out + jnp.einsum('bhqn,nhd->bhqd', of_memory, inputs.memory[1]), None
      out = _by_query(out, inputs)
      if inputs.terms is not None and inputs.terms.has_values:
        probabilities = _by_head(probabilities, inputs)
        out += inputs.terms.encoding.values(probabilities, inputs.q_tokens, inputs.k_tokens)
    out = out if mask is None else zero_masked_queries(out, mask)
    return checkpoint_name(out, ATTENTION_OUTPUT)

  def probabilities(self, inputs: AttentionInputs) -> Float[Array, 'batch heads q_len k_len']:
    """Returns the attention probabilities before dropout; 0 for queries that see no key."""
    probabilities, mask = self._grouped_probabilities(inputs)
    probabilities = _by_head(probabilities[..., : inputs.k_len], inputs)
    return probabilities if mask is None else jnp.where(mask, probabilities, 0)

  def _grouped_probabilities(self, inputs: AttentionInputs) -> tuple[Array, Array | None]:
    """Returns the probabilities [batch, kv_heads, q_len * groups, k_len], followed by those of keys without tokens, and
    the mask [#batch, 1, q_len, k_len], or None without a mask."""
    batch, kv_heads, dtype = inputs.v.shape[0], inputs.v.shape[2], inputs.dtype
    groups = inputs.num_heads // kv_heads
    sink = None
    if isinstance(inputs.scores, DotProduct):
      scores, sink = self._dots(inputs.scores, groups), inputs.scores.sink
    else:
      scores = _by_group(inputs.scores.array, inputs)
      scores = jnp.broadcast_to(scores, (batch, *scores.shape[1:]))
    added, mask = self._added(inputs)
    for term in added:
      scores += term
    if isinstance(inputs.scores, Logits) and inputs.scores.mixture is not None:
      mixture = inputs.scores.mixture.astype(dtype)
      with pair_products():
        mixed = jnp.einsum('bgqk,gh->bhqk', _by_head(softmax(scores), inputs), mixture)
      return _by_group(mixed, inputs), mask
    if isinstance(inputs.scores, DotProduct) and inputs.memory is not None:
      q, k = (
        _grouped_queries(inputs.scores.q, groups),
        inputs.memory[0].astype(inputs.scores.q.dtype),
      )
      dots = jnp.einsum('bqhd,nhd->bhqn', q, k, preferred_element_type=dtype)
      dots = apply_soft_cap(dots * inputs.scores.scale, inputs.scores.soft_cap)
      scores = jnp.concatenate([scores, dots.astype(scores.dtype)], axis=-1)
    if sink is None:
      return softmax(scores), mask
    column = jnp.tile(sink.astype(dtype).reshape(kv_heads, groups), inputs.q_len)[None, :, :, None]
    column = jnp.broadcast_to(column, (*scores.shape[:-1], 1))
    return softmax(jnp.concatenate([scores, column], axis=-1))[..., :-1], mask

  def _added(self, inputs: AttentionInputs) -> tuple[tuple[Array, ...], Array | None]:
    """Returns arrays [#batch, #kv_heads, q_len * groups, k_len] to add to the scores, and the mask
    [#batch, 1, q_len, k_len], or None without a mask."""
    terms = []
    added = inputs.added_scores()
    if added is not None:
      terms.append(_by_group(added, inputs))
    mask = attention_mask(inputs.pattern, inputs.q_tokens, inputs.k_tokens)
    if mask is not None:
      # A sum, which XLA's CPU backend merges with the product and the softmax; a selection is an operation of its own.
      hidden = jnp.where(mask, 0, jnp.finfo(inputs.dtype).min).astype(inputs.dtype)
      terms.append(jnp.repeat(hidden, inputs.num_heads // inputs.v.shape[2], axis=2))
    return tuple(terms), mask

  @pair_products()
  def _dots(self, scores: DotProduct, groups: int) -> Float[Array, 'batch kv_heads queries k_len']:
    """Returns the scaled, soft-capped dot products [batch, kv_heads, q_len * groups, k_len]."""
    q, k = _grouped_queries(scores.q, groups), scores.k
    dtype = softmax_dtype(q)
    if q.shape[1] == 1:
      # With the keys first, XLA's CPU backend does not transpose the keys of a cache for each new token.
      dots = jnp.einsum('bkhd,bqhd->bhkq', k, q, preferred_element_type=dtype).swapaxes(2, 3)
    else:
      dots = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=dtype)
    return apply_soft_cap(dots * scores.scale, scores.soft_cap)


# The products of all pairs.
_merged_attention = pair_products()(merged_attention)


def _can_merge(scores: DotProduct, inputs: AttentionInputs) -> bool:
  """Whether `merged_attention` computes the attention of the inputs."""
  if not on_one_cpu() or inputs.q_len == 1 or inputs.has_dropout:
    return False
  if scores.soft_cap is not None or scores.sink is not None or inputs.memory is not None:
    return False
  return inputs.terms is None or not inputs.terms.has_values


def _grouped_queries(q: Array, groups: int) -> Array:
  """Makes the query heads of a group additional queries of their key head: [batch, q_len * groups, kv_heads, dim]."""
  batch, q_len, heads, head_dim = q.shape
  q = q.reshape(batch, q_len, heads // groups, groups, head_dim).swapaxes(2, 3)
  return q.reshape(batch, q_len * groups, heads // groups, head_dim)


def _by_group(scores: Array, inputs: AttentionInputs) -> Array:
  """Reshapes [#batch, heads, q_len, k_len] to [#batch, kv_heads, q_len * groups, k_len]."""
  kv_heads, q_len = inputs.v.shape[2], inputs.q_len
  groups = inputs.num_heads // kv_heads
  split = scores.astype(inputs.dtype).reshape(-1, kv_heads, groups, q_len, inputs.k_len)
  return split.swapaxes(2, 3).reshape(-1, kv_heads, q_len * groups, inputs.k_len)


def _by_query(out: Array, inputs: AttentionInputs) -> Array:
  """Reshapes [batch, kv_heads, q_len * groups, v_dim] to [batch, q_len, heads, v_dim]."""
  batch, kv_heads, q_len = out.shape[0], out.shape[1], inputs.q_len
  out = out.reshape(batch, kv_heads, q_len, inputs.num_heads // kv_heads, -1).swapaxes(1, 2)
  return out.reshape(batch, q_len, inputs.num_heads, -1)


def _by_head(probabilities: Array, inputs: AttentionInputs) -> Array:
  """Reshapes [batch, kv_heads, q_len * groups, k_len] to [batch, heads, q_len, k_len]."""
  kv_heads, q_len = inputs.v.shape[2], inputs.q_len
  groups = inputs.num_heads // kv_heads
  split = probabilities.reshape(-1, kv_heads, q_len, groups, inputs.k_len).swapaxes(2, 3)
  return split.reshape(-1, inputs.num_heads, q_len, inputs.k_len)
