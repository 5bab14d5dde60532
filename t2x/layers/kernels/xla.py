"""Kernel that calls `jax.nn.dot_product_attention`: XLA's attention, or cuDNN's flash attention
(FlashAttention: Dao et al. 2022, arXiv:2205.14135) on NVIDIA GPUs."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from t2x.layers.base import RowLayout
from t2x.layers.constraints import num_parts
from t2x.layers.kernels.base import (
  ATTENTION_OUTPUT,
  AttentionInputs,
  DotProduct,
  Kernel,
  zero_masked_queries,
)
from t2x.layers.masks import attention_mask
from t2x.layers.patterns import Pattern


@dataclasses.dataclass(frozen=True)
class XLA(Kernel):
  """Attention by `jax.nn.dot_product_attention`.

  Attributes:
    implementation: None or 'xla' supports all patterns, segments and position terms, as dense arrays.
      'cudnn' needs O(length) memory and supports only Full, Causal and Causal & Window without segments and
      position terms, because cuDNN was observed to ignore segments.
  """

  implementation: Literal['xla', 'cudnn'] | None = None

  def supports(self, inputs: AttentionInputs) -> str | None:
    scores = inputs.scores
    if not isinstance(scores, DotProduct):
      return 'it supports dot products only, but the scores are an array of logits'
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
    arrays = scores.q, scores.k, inputs.v
    if self.implementation == 'cudnn':
      return jax.nn.dot_product_attention(
        *arrays,
        scale=scores.scale,
        implementation='cudnn',
        **(_mask_arguments(inputs.pattern) or {}),
      )
    mask = attention_mask(inputs.pattern, inputs.q_tokens, inputs.k_tokens)
    added = inputs.added_scores()
    out = jax.nn.dot_product_attention(
      *arrays,
      bias=None if added is None else added.astype(inputs.dtype),
      mask=mask,
      scale=scores.scale,
      implementation='xla',
    )
    out = out if mask is None else zero_masked_queries(out, mask)
    return checkpoint_name(out, ATTENTION_OUTPUT)


def _cudnn_limit(scores: DotProduct, inputs: AttentionInputs) -> str | None:
  q = scores.q
  if jax.default_backend() != 'gpu':
    return f'cuDNN needs an NVIDIA GPU, but the backend is {jax.default_backend()}'
  if num_parts('length') > 1:
    return 'cuDNN does not support rows that are split over devices'
  if q.dtype not in (jnp.bfloat16, jnp.float16):
    return f'cuDNN supports bfloat16 and float16, not {q.dtype}'
  if q.shape[-1] % 8 or q.shape[-1] > 128:
    return f'cuDNN needs a head_dim divisible by 8 and at most 128, not {q.shape[-1]}'
  if inputs.terms is not None:
    return 'cuDNN is not used with a bias on the scores'
  for tokens in (inputs.q_tokens, inputs.k_tokens):
    if tokens.segments is not None or tokens.layout is not RowLayout.CONTIGUOUS:
      return 'cuDNN is not used with segments and explicit positions'
  arguments = _mask_arguments(inputs.pattern)
  if arguments is None:
    return f'cuDNN supports Full, Causal and Causal & Window, not {inputs.pattern}'
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
