"""`jax.nn.dot_product_attention`: XLA's own attention, or cuDNN's flash attention on NVIDIA GPUs
(FlashAttention: Dao et al. 2022, arXiv:2205.14135)."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.hyperparameters import Tunable
from t2x.layers.base import RowLayout, Tokens
from t2x.layers.constraints import num_parts
from t2x.layers.kernels.base import Kernel, added_scores, group_size, hide_blind, softmax_dtype
from t2x.layers.masks import attention_mask
from t2x.layers.patterns import Pattern

__all__ = ['XLA']


@dataclasses.dataclass(frozen=True)
class XLA(Kernel):
  """Hands attention to `jax.nn.dot_product_attention`.

  Attributes:
    implementation: None or 'xla' takes every pattern, segment and bias, as dense arrays. 'cudnn'
      runs in O(length) memory and takes Full, Causal and Causal & Window without segments or bias:
      no more, since cuDNN was seen to ignore segments.
  """

  implementation: Literal['xla', 'cudnn'] | None = None

  def refusal(
    self,
    q: Any,
    k: Any,
    v: Any,
    *,
    pattern: Pattern,
    q_tokens: Tokens,
    k_tokens: Tokens,
    bias: Any = None,
    dropout_rate: Tunable = 0.0,
    key: jax.Array | None = None,
  ) -> str | None:
    """Why this kernel cannot do the call, or None. Reads shapes and dtypes alone."""
    if dropout_rate != 0.0 and key is not None:
      return 'it has no dropout of attention probabilities'
    if q.shape[-1] != v.shape[-1]:
      return f'keys have {q.shape[-1]} features a head and values {v.shape[-1]}'
    if self.implementation != 'cudnn':
      return None
    if jax.default_backend() != 'gpu':
      return f'cuDNN needs an NVIDIA GPU, and this is {jax.default_backend()}'
    if num_parts('length') > 1:
      return 'cuDNN attends to whole rows, and these are split over devices'
    if q.dtype not in (jnp.bfloat16, jnp.float16):
      return f'cuDNN computes in bfloat16 or float16, not {q.dtype}'
    if q.shape[-1] % 8 or q.shape[-1] > 128:
      return f'cuDNN wants a head_dim divisible by 8 and at most 128, not {q.shape[-1]}'
    if bias is not None:
      return 'a bias on the scores is not trusted to cuDNN'
    for tokens in (q_tokens, k_tokens):
      if tokens.segments is not None or tokens.layout is not RowLayout.CONTIGUOUS:
        return 'segments and explicit positions are not trusted to cuDNN'
    native = _native(pattern)
    if native is None:
      return f'cuDNN knows Full, Causal and Causal & Window, not {pattern}'
    if native and q.shape[1] != k.shape[1]:
      return f'cuDNN is causal over equal lengths, not {q.shape[1]} and {k.shape[1]}'
    return None

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
    group_size(q, k)
    asked = {'pattern': pattern, 'q_tokens': q_tokens, 'k_tokens': k_tokens, 'bias': bias}
    reason = self.refusal(q, k, v, **asked, dropout_rate=dropout_rate, key=key)
    if reason is not None:
      raise UserError(f'{self} cannot attend here: {reason}; use Dense(), Blockwise() or Auto()')
    if self.implementation == 'cudnn':
      return jax.nn.dot_product_attention(
        q, k, v, scale=scale, implementation='cudnn', **(_native(pattern) or {})
      )
    mask = attention_mask(pattern, q_tokens, k_tokens)
    if bias is not None:
      q_pos, k_pos = q_tokens.positions, k_tokens.positions
      bias = added_scores(bias, q, q_pos, k_pos, scale).astype(softmax_dtype(q))
    out = jax.nn.dot_product_attention(
      q, k, v, bias=bias, mask=mask, scale=scale, implementation='xla'
    )
    return out if mask is None else hide_blind(out, mask)


def _native(pattern: Pattern) -> dict[str, Any] | None:
  """The arguments by which cuDNN honours the pattern itself; None where it cannot."""
  match pattern.offsets():
    case (None, None):
      return {}
    case (0, None):
      return {'is_causal': True}
    case (0, int(highest)):
      return {'is_causal': True, 'local_window_size': (highest, 0)}
  return None
