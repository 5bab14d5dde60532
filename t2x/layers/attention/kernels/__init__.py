"""Attention kernels, which compute outputs from scores, values and a pattern. `Dense` is the reference."""

from t2x.layers.kernels.auto import Auto
from t2x.layers.kernels.base import (
  ATTENTION_OUTPUT,
  AttentionInputs,
  DotProduct,
  Kernel,
  Logits,
  PositionTerms,
)
from t2x.layers.kernels.blockwise import Blockwise
from t2x.layers.kernels.dense import Dense
from t2x.layers.kernels.pallas_mha import PallasMHA
from t2x.layers.kernels.ring import Ring
from t2x.layers.kernels.splash import Splash
from t2x.layers.kernels.xla import XLA

__all__ = [
  'ATTENTION_OUTPUT',
  'XLA',
  'AttentionInputs',
  'Auto',
  'Blockwise',
  'Dense',
  'DotProduct',
  'Kernel',
  'Logits',
  'PallasMHA',
  'PositionTerms',
  'Ring',
  'Splash',
]
