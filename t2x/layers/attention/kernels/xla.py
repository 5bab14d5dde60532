"""Kernel that calls `jax.nn.dot_product_attention`: XLA's attention, or cuDNN's flash attention
(FlashAttention: Dao et al. 2022, arXiv:2205.14135) on NVIDIA GPUs."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from t2x.layers.attention.kernels.base import (
  ATTENTION_OUTPUT,
  AttentionInputs,
  DotProduct,
  Kernel,
  attention_mask,
  no_forward_mode,
  no_gpu,
  not_tiled,
  zero_masked_queries,
)
from t2x.layers.constraints import num_parts
from t2x.layers.patterns.algebra import Pattern
from t2x.layers.tokens import RowLayout, Tokens

__all__ = ['XLA']


@dataclasses.dataclass(frozen=True)
class XLA(Kernel):
  """Attention by `jax.nn.dot_product_attention`.

  Attributes:
    implementation: None or 'xla' supports all patterns, segments and position terms, as dense arrays.
      'cudnn' needs O(length) memory and supports only Full, Causal and Causal & Window, for rows of one
      segment without position terms. Padding at the end of the rows (`Tokens.right_padded`) is passed as the
      number of tokens per row, for Full and Causal. Packed rows are refused: cuDNN was observed to ignore
      segments.
  """

  implementation: Literal['xla', 'cudnn'] | None = None

  def supports(self, inputs: AttentionInputs) -> str | None:
    if (reason := not_tiled(inputs)) is not None:
      return reason
    scores = inputs.scores
    assert isinstance(scores, DotProduct)
    if scores.soft_cap is not None or scores.sink is not None:
      return 'it does not support soft caps and sinks'
    if inputs.has_dropout:
      return 'it does not support dropout of attention probabilities'
    if inputs.terms is not None and inputs.terms.has_values:
      return f'{inputs.terms.name}.values reads the probabilities, which it does not return'
    if scores.q.shape[-1] != inputs.v.shape[-1]:
      return (
        f'keys have {scores.q.shape[-1]} features per head, but values have {inputs.v.shape[-1]}'
      )
    return _cudnn_limit(scores, inputs) if self.implementation == 'cudnn' else None

  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    scores = inputs.scores
    assert isinstance(scores, DotProduct)  # `supports` requires it.
    if self.implementation == 'cudnn':
      return _cudnn(scores, inputs)
    mask = attention_mask(inputs.pattern, inputs.q_tokens, inputs.k_tokens)
    added = inputs.added_scores()
    out = jax.nn.dot_product_attention(
      scores.q,
      scores.k,
      inputs.v,
      bias=None if added is None else added.astype(inputs.dtype),
      mask=mask,
      scale=scores.scale,
      implementation='xla',
    )
    out = out if mask is None else zero_masked_queries(out, mask)
    return checkpoint_name(out, ATTENTION_OUTPUT)


def _cudnn_limit(scores: DotProduct, inputs: AttentionInputs) -> str | None:
  q = scores.q
  if (reason := no_gpu('cuDNN') or no_forward_mode('cuDNN')) is not None:
    return reason
  if num_parts('length') > 1:
    return 'cuDNN does not support rows that are split over devices'
  if q.dtype not in (jnp.bfloat16, jnp.float16):
    return f'cuDNN supports bfloat16 and float16, not {q.dtype}'
  if q.shape[-1] % 8 or q.shape[-1] > 128:
    return f'cuDNN needs a head_dim divisible by 8 and at most 128, not {q.shape[-1]}'
  if inputs.terms is not None:
    return 'cuDNN is not used with a bias on the scores'
  sides = inputs.q_tokens, inputs.k_tokens
  for tokens in sides:
    if tokens.layout is not RowLayout.CONTIGUOUS:
      return 'cuDNN is not used with packed rows and explicit positions'
    if tokens.segments is not None and not tokens.right_padded:
      return 'cuDNN is not used with segments, except for padding at the end of a row'
  arguments = _mask_arguments(inputs.pattern)
  if arguments is None:
    return f'cuDNN supports Full, Causal and Causal & Window, not {inputs.pattern}'
  if 'local_window_size' in arguments and any(tokens.segments is not None for tokens in sides):
    return 'cuDNN is not used with a window and padding'
  if arguments and inputs.q_len != inputs.k_len:
    return (
      f'cuDNN supports causal patterns for equal lengths only, not {inputs.q_len} queries and '
      f'{inputs.k_len} keys'
    )
  return None


def _mask_arguments(pattern: Pattern) -> dict[str, Any] | None:
  """Returns the arguments of cuDNN that express the pattern; None if there are none."""
  match pattern.offsets():
    case (None, None):
      return {}
    case (0, None):
      return {'is_causal': True}
    case (0, int(highest)):
      return {'is_causal': True, 'local_window_size': (highest, 0)}
  return None


def _cudnn(scores: DotProduct, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
  """Computes attention with cuDNN, masking padding by the number of tokens per row.

  What cuDNN writes at padding is not relied upon: outputs and gradients there are set to zero.
  """
  q, k, v = scores.q, scores.k, inputs.v
  q_count, k_count = (_num_tokens(t, len(v)) for t in (inputs.q_tokens, inputs.k_tokens))
  arguments = dict(_mask_arguments(inputs.pattern) or {})
  # A row without tokens, such as those that fill the last batch, attends to one token of padding: zeros.
  if q_count is not None:
    arguments['query_seq_lengths'] = jnp.maximum(q_count, 1)
  if k_count is not None:
    arguments['key_value_seq_lengths'] = jnp.maximum(k_count, 1)
  out = jax.nn.dot_product_attention(
    _zero_padding(q, q_count),
    _zero_padding(k, k_count),
    _zero_padding(v, k_count),
    scale=scores.scale,
    implementation='cudnn',
    **arguments,
  )
  return _zero_padding(out, q_count)


def _num_tokens(tokens: Tokens, batch: int) -> Int[Array, 'batch'] | None:
  """Returns the number of tokens per row; None without padding."""
  if tokens.segments is None:
    return None
  return jnp.broadcast_to((tokens.segments != 0).sum(1, dtype=jnp.int32), batch)


def _zero_padding(
  x: Float[Array, 'batch length heads dim'], count: Int[Array, 'batch'] | None
) -> Float[Array, 'batch length heads dim']:
  """Sets the vectors after the first `count` of each row to zero, and so their gradients."""
  if count is None:
    return x
  valid: Bool[Array, 'batch length'] = jnp.arange(x.shape[1])[None] < count[:, None]
  return jnp.where(valid[:, :, None, None], x, 0)
