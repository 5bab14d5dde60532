"""The reference kernel: the whole attention matrix, as Vaswani et al. 2017 (arXiv:1706.03762) write
it. Grouped heads are those of Ainslie et al. 2023 (arXiv:2305.13245)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.hyperparameters import Tunable
from t2x.layers.base import Tokens, dropout
from t2x.layers.kernels.base import Kernel, added_scores, group_size, hide_blind, softmax_dtype
from t2x.layers.masks import attention_mask
from t2x.layers.patterns import Pattern

__all__ = ['Dense']


@dataclasses.dataclass(frozen=True)
class Dense(Kernel):
  """Softmax over the dense matrix of scores; memory O(q_len k_len)."""

  def __call__(
    self,
    q: Float[Array, 'batch q_len heads head_dim'],
    k: Float[Array, 'batch k_len kv_heads head_dim'],
    v: Float[Array, 'batch k_len kv_heads v_dim'],
    *,
    pattern: Pattern,
    q_tokens: Tokens,
    k_tokens: Tokens,
    bias: Any = None,
    scale: float,
    dropout_rate: Tunable = 0.0,
    key: jax.Array | None = None,
  ) -> Float[Array, 'batch q_len heads v_dim']:
    batch, q_len, heads, head_dim = q.shape
    k_len, kv_heads, dtype = k.shape[1], k.shape[2], softmax_dtype(q)
    groups = group_size(q, k)
    added = None
    if bias is not None:
      added = added_scores(bias, q, q_tokens.positions, k_tokens.positions, scale)
    # The heads of a group stand in line as so many more queries of their one key head.
    q = q.reshape(batch, q_len, kv_heads, groups, head_dim).swapaxes(2, 3)
    q = q.reshape(batch, q_len * groups, kv_heads, head_dim)
    scores = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=dtype) * scale
    if added is not None:
      added = added.astype(dtype).reshape(-1, kv_heads, groups, q_len, k_len).swapaxes(2, 3)
      scores += added.reshape(-1, kv_heads, q_len * groups, k_len)
    mask = attention_mask(pattern, q_tokens, k_tokens)
    if mask is not None:
      scores = jnp.where(jnp.repeat(mask, groups, axis=2), scores, jnp.finfo(dtype).min)
    probabilities = dropout(jax.nn.softmax(scores).astype(v.dtype), dropout_rate, key)
    out = jnp.einsum('bhqk,bkhd->bqhd', probabilities, v)
    out = out.reshape(batch, q_len, groups, kv_heads, -1).swapaxes(2, 3)
    out = out.reshape(batch, q_len, heads, -1)
    return out if mask is None else hide_blind(out, mask)
