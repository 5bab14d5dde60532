"""Training: state, step, loop, optimizers, checkpoints, metric writers. One loop for every task."""

from t2x.train.optimizers import SGD, Adafactor, AdamW, Lion, Muon, Optimizer, build_optimizer
from t2x.train.schedules import (
  Constant,
  Cosine,
  LinearDecay,
  ReciprocalSqrt,
  Schedule,
  WarmupStableDecay,
)

__all__ = [
  'SGD',
  'Adafactor',
  'AdamW',
  'Constant',
  'Cosine',
  'LinearDecay',
  'Lion',
  'Muon',
  'Optimizer',
  'ReciprocalSqrt',
  'Schedule',
  'WarmupStableDecay',
  'build_optimizer',
]
