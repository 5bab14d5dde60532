"""`jax.nn.dot_product_attention`: XLA's own attention, or cuDNN's flash attention on NVIDIA GPUs
(FlashAttention: Dao et al. 2022, arXiv:2205.14135)."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.layers.base import RowLayout
from t2x.layers.constraints import num_parts
from t2x.layers.kernels.base import AttentionInputs, DotProduct, Kernel, hide_blind
from t2x.layers.masks import attention_mask
from t2x.layers.patterns import Pattern


@dataclasses.dataclass(frozen=True)
class XLA(Kernel):
  """Calls `jax.nn.dot_product_attention`.

  Attributes:
    implementation: None or 'xla' takes every pattern, segment and position term, as dense arrays.
      'cudnn' runs in O(length) memory and takes Full, Causal and Causal & Window without segments or
      position terms: no more, since cuDNN was seen to ignore segments.
  """

  implementation: Literal['xla', 'cudnn'] | None = None

  def supports(self, inputs: AttentionInputs) -> str | None:
    scores = inputs.scores
    if not isinstance(scores, DotProduct):
      return 'it takes dot products, and these scores are an array of logits'
    if scores.soft_cap is not None or scores.sink is not None:
      return 'it has no soft cap and no sinks'
    if inputs.drops:
      return 'it has no dropout of attention probabilities'
    if inputs.terms is not None and inputs.terms.has_values:
      return f'{inputs.terms.name}.values reads the probabilities, which it does not return'
    if scores.q.shape[-1] != inputs.v.shape[-1]:
      return f'keys have {scores.q.shape[-1]} features a head and values {inputs.v.shape[-1]}'
    return _cudnn_refusal(scores, inputs) if self.implementation == 'cudnn' else None

  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    scores = inputs.scores
    assert isinstance(scores, DotProduct)  # `supports` requires it.
    arrays = scores.q, scores.k, inputs.v
    if self.implementation == 'cudnn':
      return jax.nn.dot_product_attention(
        *arrays, scale=scores.scale, implementation='cudnn', **(_native(inputs.pattern) or {})
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
    return out if mask is None else hide_blind(out, mask)


def _cudnn_refusal(scores: DotProduct, inputs: AttentionInputs) -> str | None:
  q = scores.q
  if jax.default_backend() != 'gpu':
    return f'cuDNN needs an NVIDIA GPU, and this is {jax.default_backend()}'
  if num_parts('length') > 1:
    return 'cuDNN attends to whole rows, and these are split over devices'
  if q.dtype not in (jnp.bfloat16, jnp.float16):
    return f'cuDNN computes in bfloat16 or float16, not {q.dtype}'
  if q.shape[-1] % 8 or q.shape[-1] > 128:
    return f'cuDNN wants a head_dim divisible by 8 and at most 128, not {q.shape[-1]}'
  if inputs.terms is not None:
    return 'a bias on the scores is not trusted to cuDNN'
  for tokens in (inputs.q_tokens, inputs.k_tokens):
    if tokens.segments is not None or tokens.layout is not RowLayout.CONTIGUOUS:
      return 'segments and explicit positions are not trusted to cuDNN'
  native = _native(inputs.pattern)
  if native is None:
    return f'cuDNN knows Full, Causal and Causal & Window, not {inputs.pattern}'
  if native and inputs.q_len != inputs.k_len:
    return f'cuDNN is causal over equal lengths, not {inputs.q_len} and {inputs.k_len}'
  return None


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
