"""Kernel that calls jax's Pallas flash attention for NVIDIA GPUs (jax.experimental.pallas.ops.gpu.attention;
FlashAttention: Dao et al. 2022, arXiv:2205.14135)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.kernels.base import (
  AttentionInputs,
  DotProduct,
  Kernel,
  no_forward_mode,
  no_gpu,
  not_tiled,
)
from t2x.layers.constraints import num_parts
from t2x.layers.tokens import RowLayout

__all__ = ['PallasMHA']

# `Pattern.offsets` of the supported patterns, and whether they are causal.
_OFFSETS: dict[Any, bool] = {(None, None): False, (0, None): True}
# Logical axes that a kernel without a rule for partitioning must have whole.
_AXES = ('batch', 'length', 'heads', 'kv_heads')


@dataclasses.dataclass(frozen=True)
class PallasMHA(Kernel):
  """Flash attention in O(length) memory under Full and Causal, for plain and packed rows, on one NVIDIA GPU.

  Attributes:
    block: queries and keys per tile of the forward pass.
    backward_block: queries and keys per tile of the backward pass.
    interpret: whether to run Pallas' interpreter, on any device; for tests.
  """

  block: Size = 128
  backward_block: Size = 64
  interpret: bool = False

  def __post_init__(self):
    for name in ('block', 'backward_block'):
      size = getattr(self, name)
      if size < 16 or size & (size - 1):
        raise UserError(f'PallasMHA.{name} = {size} must be a power of two and at least 16')

  def supports(self, inputs: AttentionInputs) -> str | None:
    if (reason := not_tiled(inputs) or no_forward_mode('PallasMHA')) is not None:
      return reason
    scores = inputs.scores
    assert isinstance(scores, DotProduct)
    if scores.soft_cap is not None or scores.sink is not None:
      return 'PallasMHA does not support soft caps and sinks'
    if inputs.has_dropout:
      return 'PallasMHA does not support dropout of attention probabilities'
    if inputs.terms is not None:
      return 'PallasMHA does not support position terms'
    if inputs.pattern.offsets() not in _OFFSETS:
      return f'PallasMHA supports Full and Causal, not {inputs.pattern}'
    return (
      self._shape_limit(scores, inputs) or self._row_limit(inputs) or self._device_limit(scores)
    )

  def _shape_limit(self, scores: DotProduct, inputs: AttentionInputs) -> str | None:
    dim, v_dim = scores.q.shape[-1], inputs.v.shape[-1]
    if dim != v_dim:
      return f'keys have {dim} features per head, but values have {v_dim}'
    if dim not in (16, 32, 64, 128):
      return f'PallasMHA needs a head_dim of 16, 32, 64 or 128, not {dim}'
    lengths, tile = (inputs.q_len, inputs.k_len), max(self.block, self.backward_block)
    if lengths[0] != lengths[1] or lengths[0] % tile:
      return (
        f'PallasMHA needs equal numbers of queries and keys that {tile} divides, '
        f'not {lengths[0]} and {lengths[1]}'
      )
    return None

  def _row_limit(self, inputs: AttentionInputs) -> str | None:
    sides = inputs.q_tokens, inputs.k_tokens
    # Packed queries and keys are the same rows (see `common_layout`), so one array of segments describes both.
    if all(tokens.layout is RowLayout.PACKED for tokens in sides):
      return None
    if all(t.layout is RowLayout.CONTIGUOUS and t.segments is None for t in sides):
      return None
    return 'PallasMHA needs packed rows, or rows without segments'

  def _device_limit(self, scores: DotProduct) -> str | None:
    if self.interpret:
      return None
    if (reason := no_gpu('PallasMHA')) is not None:
      return reason
    if scores.q.dtype not in (jnp.bfloat16, jnp.float16):
      return f'PallasMHA is used with bfloat16 and float16, not {scores.q.dtype}'
    if any(num_parts(axis) > 1 for axis in _AXES):
      return 'PallasMHA does not support arrays that are split over devices'
    return None

  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    scores, segments = inputs.scores, inputs.q_tokens.segments
    assert isinstance(scores, DotProduct)  # `supports` requires it.
    groups = inputs.num_heads // inputs.v.shape[2]
    if segments is not None:
      segments = jnp.broadcast_to(segments, scores.q.shape[:2]).astype(jnp.int32)
    out = mha(
      scores.q,
      jnp.repeat(scores.k, groups, axis=2),
      jnp.repeat(inputs.v, groups, axis=2),
      segments,
      float(scores.scale),
      _OFFSETS[inputs.pattern.offsets()],
      BlockSizes(self.block, self.block, *[self.backward_block] * 4),
      interpret=self.interpret,
    )
    # Padding is a segment like any other to `mha`: its queries attend to padding.
    return out if segments is None else jnp.where((segments != 0)[:, :, None, None], out, 0)
