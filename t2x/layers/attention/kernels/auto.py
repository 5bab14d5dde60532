"""Attention kernel that selects another kernel before run time and logs the choice once."""

import dataclasses
import functools
import logging
from collections.abc import Sequence

from jaxtyping import Array, Float

from t2x.base.ranges import Size
from t2x.base.step import target
from t2x.layers.attention.kernels.base import AttentionInputs, Kernel, no_gpu
from t2x.layers.attention.kernels.blockwise import Blockwise
from t2x.layers.attention.kernels.dense import Dense
from t2x.layers.attention.kernels.pallas_mha import PallasMHA
from t2x.layers.attention.kernels.ring import Ring
from t2x.layers.attention.kernels.splash import Splash
from t2x.layers.attention.kernels.xla import XLA
from t2x.layers.constraints import num_parts

__all__ = ['Auto']


@dataclasses.dataclass(frozen=True)
class Auto(Kernel):
  """Selects cuDNN if it supports the inputs, else dense attention for few scores, else the first of Ring (for rows
  that are split over devices), PallasMHA (on GPUs), Splash (on TPUs) and Blockwise that supports the inputs,
  else dense attention.

  Attributes:
    dense_scores: maximum number of scores per head (q_len times k_len) for which dense attention is
      preferred to the others. None: 512 x 512, but less than 256 x 256 for PallasMHA. On two CPU cores dense and
      blockwise attention break even at 512 x 512; at 1024 x 1024 causal blockwise attention takes half the time. On an
      H100 PallasMHA takes 0.4 times as long as dense attention at 256 x 256 (causal, packed rows).
  """

  dense_scores: Size | None = None
  needs_complete_rows = False

  def supports(self, inputs: AttentionInputs) -> str | None:
    return None

  def choose(self, inputs: AttentionInputs) -> tuple[Kernel, str]:
    """Returns the kernel and the reason for the choice, from shapes, dtypes and static fields only."""
    size, pallas = f'{inputs.q_len} x {inputs.k_len} scores', list[Kernel]()
    refusal = no_gpu('cuDNN')
    if refusal is None:
      cudnn, pallas = XLA('cudnn'), [PallasMHA()]
      refusal = cudnn.supports(inputs)
      if refusal is None:
        return cudnn, f'cuDNN supports {inputs.pattern}, {size}'
    if inputs.q_len * inputs.k_len <= self._limit(inputs, pallas):
      return Dense(), f'{size} are few; {refusal}'
    splash = [Splash()] if target() == 'tpu' else []
    ring = [Ring()] if num_parts('length') > 1 else []
    for kernel in (*ring, *pallas, *splash, Blockwise()):
      reason = kernel.supports(inputs)
      if reason is None:
        return kernel, f'{size} are many; {refusal}'
      refusal = f'{refusal}; {reason}'
    return Dense(), refusal

  def _limit(self, inputs: AttentionInputs, pallas: Sequence[Kernel]) -> int:
    """Returns the maximum number of scores for dense attention."""
    if self.dense_scores is not None:
      return self.dense_scores
    is_fused = any(kernel.supports(inputs) is None for kernel in pallas)
    return 256 * 256 - 1 if is_fused else 512 * 512

  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    kernel, reason = self.choose(inputs)
    _log_once(kernel, reason)
    return kernel(inputs)


@functools.cache
def _log_once(kernel: Kernel, reason: str) -> None:
  logging.getLogger('t2x').debug('attention kernel %s: %s', kernel, reason)
