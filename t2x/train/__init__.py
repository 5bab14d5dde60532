"""Training: loop, train step, optimizers, schedules, checkpoints, metric writers."""

from t2x.train.check import check_experiment, draw_patterns, layout_report
from t2x.train.experiment import Experiment, Teacher, Trainer
from t2x.train.faults import Diverged, Rollback, Skip, Stop
from t2x.train.init_from import InitFrom
from t2x.train.logs.trackers import MLflow, WandB
from t2x.train.loop import train
from t2x.train.mup import MuP
from t2x.train.optimizers import SGD, Adafactor, AdamW, Lion, Muon, Optimizer, build_optimizer
from t2x.train.params import Group, LayerDecay, LayerRate
from t2x.train.program import TrainProgram
from t2x.train.resize import (
  InterpolateGrid,
  InterpolatePositions,
  KeepNew,
  Resize,
  ResizeVocabulary,
)
from t2x.train.run import TrainingRun
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
  'Diverged',
  'Experiment',
  'Group',
  'InitFrom',
  'InterpolateGrid',
  'InterpolatePositions',
  'KeepNew',
  'LayerDecay',
  'LayerRate',
  'LinearDecay',
  'Lion',
  'MLflow',
  'MuP',
  'Muon',
  'Optimizer',
  'ReciprocalSqrt',
  'Resize',
  'ResizeVocabulary',
  'Rollback',
  'Schedule',
  'Skip',
  'Stop',
  'Teacher',
  'TrainProgram',
  'Trainer',
  'TrainingRun',
  'WandB',
  'WarmupStableDecay',
  'build_optimizer',
  'check_experiment',
  'draw_patterns',
  'layout_report',
  'train',
]
