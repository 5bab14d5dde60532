"""Learning tasks: model inputs from raw examples, losses, metrics and evaluators. One file per task."""

from t2x.tasks.auxiliary import *
from t2x.tasks.base import *
from t2x.tasks.captions import *
from t2x.tasks.causal_lm import *
from t2x.tasks.contrastive import *
from t2x.tasks.distillation import *
from t2x.tasks.evaluators import *
from t2x.tasks.few_shot import *
from t2x.tasks.image_classification import *
from t2x.tasks.image_mixing import *
from t2x.tasks.language_modelling import *
from t2x.tasks.marks import *
from t2x.tasks.masked_lm import *
from t2x.tasks.mixture import *
from t2x.tasks.next_sentence import *
from t2x.tasks.permutation_lm import *
from t2x.tasks.pictures import *
from t2x.tasks.prefix_lm import *
from t2x.tasks.regression import *
from t2x.tasks.sequence_classification import *
from t2x.tasks.span_corruption import *
from t2x.tasks.span_prediction import *
from t2x.tasks.text import *
from t2x.tasks.translation import *
from t2x.tasks.word_classification import *
