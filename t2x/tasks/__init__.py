"""Learning tasks: model inputs from raw examples, losses, metrics and evaluators. One file per task."""

from typing import TYPE_CHECKING

from t2x.base.names import exports
from t2x.tasks.former import BASES

if TYPE_CHECKING:
  from t2x.tasks.alignments import *
  from t2x.tasks.auxiliary import *
  from t2x.tasks.base import *
  from t2x.tasks.captions import *
  from t2x.tasks.causal_lm import *
  from t2x.tasks.class_scores import *
  from t2x.tasks.classification import *
  from t2x.tasks.cloze import *
  from t2x.tasks.denoising import *
  from t2x.tasks.distillation import *
  from t2x.tasks.evaluators import *
  from t2x.tasks.few_shot import *
  from t2x.tasks.image_classification import *
  from t2x.tasks.image_mixing import *
  from t2x.tasks.language_modelling import *
  from t2x.tasks.losses import *
  from t2x.tasks.marks import *
  from t2x.tasks.masked_lm import *
  from t2x.tasks.masked_translations import *
  from t2x.tasks.mixture import *
  from t2x.tasks.multiple_choice import *
  from t2x.tasks.next_sentence import *
  from t2x.tasks.output import *
  from t2x.tasks.permutation_lm import *
  from t2x.tasks.pictures import *
  from t2x.tasks.prefix_lm import *
  from t2x.tasks.regression import *
  from t2x.tasks.replaced_tokens import *
  from t2x.tasks.sequence_classification import *
  from t2x.tasks.span_prediction import *
  from t2x.tasks.text import *
  from t2x.tasks.translation import *
  from t2x.tasks.translation_scores import *
  from t2x.tasks.word_classification import *
else:
  __getattr__, __dir__ = exports(__name__, BASES)
