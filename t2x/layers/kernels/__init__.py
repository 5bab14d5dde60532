"""Kernels: how scores become outputs under a pattern. `Dense` is the reference for all others."""

from t2x.layers.kernels.auto import Auto
from t2x.layers.kernels.base import AttentionInputs, DotProduct, Kernel, Logits, PositionTerms
from t2x.layers.kernels.blockwise import Blockwise
from t2x.layers.kernels.dense import Dense
from t2x.layers.kernels.xla import XLA

__all__ = [
  'XLA',
  'AttentionInputs',
  'Auto',
  'Blockwise',
  'Dense',
  'DotProduct',
  'Kernel',
  'Logits',
  'PositionTerms',
]
