"""Learning tasks: model inputs from raw examples, losses, metrics and evaluators. One file per task."""

from t2x.tasks.auxiliary import Auxiliary, LanguageModelling
from t2x.tasks.base import Task, TaskOutput
from t2x.tasks.causal_lm import CausalLM
from t2x.tasks.distillation import DistillableTask, Distillation
from t2x.tasks.evaluators import (
  Answers,
  Evaluator,
  Losses,
  Samples,
  Translations,
)
from t2x.tasks.few_shot import ExactMatch, FewShot, LikeliestAnswer, LikeliestLabel, Scoring
from t2x.tasks.image_classification import ImageClassification
from t2x.tasks.image_mixing import Mixing, MixUp
from t2x.tasks.marks import MarkRule, MarkStarts, MarkTexts
from t2x.tasks.masked_lm import MaskedLM
from t2x.tasks.mixture import Mixture
from t2x.tasks.pictures import AttentionMaps, ClassifiedImages
from t2x.tasks.prefix_lm import PrefixLM
from t2x.tasks.sequence_classification import SequenceClassification
from t2x.tasks.span_corruption import SpanCorruption
from t2x.tasks.span_prediction import SpanPrediction
from t2x.tasks.text import TextTask
from t2x.tasks.translation import Translation
from t2x.tasks.word_classification import WordClassification

__all__ = [
  'Answers',
  'AttentionMaps',
  'Auxiliary',
  'CausalLM',
  'ClassifiedImages',
  'DistillableTask',
  'Distillation',
  'Evaluator',
  'ExactMatch',
  'FewShot',
  'ImageClassification',
  'LanguageModelling',
  'LikeliestAnswer',
  'LikeliestLabel',
  'Losses',
  'MarkRule',
  'MarkStarts',
  'MarkTexts',
  'MaskedLM',
  'MixUp',
  'Mixing',
  'Mixture',
  'PrefixLM',
  'Samples',
  'Scoring',
  'SequenceClassification',
  'SpanCorruption',
  'SpanPrediction',
  'Task',
  'TaskOutput',
  'TextTask',
  'Translation',
  'Translations',
  'WordClassification',
]
