"""Attention kernels, which compute outputs from scores, values and a pattern. `Dense` is the reference."""

from t2x.layers.attention.kernels.auto import Auto
from t2x.layers.attention.kernels.base import (
  ATTENTION_OUTPUT,
  AttentionInputs,
  DotProduct,
  Kernel,
  Logits,
  PositionTerms,
)
from t2x.layers.attention.kernels.blockwise import Blockwise
from t2x.layers.attention.kernels.dense import Dense
from t2x.layers.attention.kernels.pallas_mha import PallasMHA
from t2x.layers.attention.kernels.ring import Ring
from t2x.layers.attention.kernels.splash import Splash
from t2x.layers.attention.kernels.xla import XLA

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
