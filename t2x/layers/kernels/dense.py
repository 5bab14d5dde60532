"""The reference kernel: the whole attention matrix, as Vaswani et al. 2017 (arXiv:1706.03762) write
it. Grouped heads are those of Ainslie et al. 2023 (arXiv:2305.13245)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.layers.base import Tokens, dropout
from t2x.layers.kernels.base import Kernel, group_size, softmax_dtype
from t2x.layers.patterns import Pattern, attention_mask

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
    dropout_rate: float = 0.0,
    key: jax.Array | None = None,
  ) -> Float[Array, 'batch q_len heads v_dim']:
    batch, q_len, heads, _ = q.shape
    k_len, kv_heads, dtype = k.shape[1], k.shape[2], softmax_dtype(q)
    grouped = q.reshape(batch, q_len, kv_heads, group_size(q, k), -1)
    scores = jnp.einsum('bqkgd,bskd->bkgqs', grouped, k, preferred_element_type=dtype) * scale
    if bias is not None:
      added = bias.bias(q_tokens.index(q_len), k_tokens.index(k_len)).astype(dtype)
      scores += added.reshape(-1, *scores.shape[1:])
    mask = attention_mask(pattern, q_tokens, k_tokens, q_len, k_len)
    if mask is None:
      probabilities = jax.nn.softmax(scores)
    else:
      mask = mask[:, :, None]
      probabilities = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(dtype).min))
      # A row that sees nothing has a softmax too: it must not be let through.
      probabilities = jnp.where(mask, probabilities, 0)
    probabilities = dropout(probabilities.astype(v.dtype), dropout_rate, key)
    return jnp.einsum('bkgqs,bskd->bqkgd', probabilities, v).reshape(batch, q_len, heads, -1)
