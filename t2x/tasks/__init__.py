"""What is learnt: turns raw examples into model inputs, gives a loss and metrics, and says how to
evaluate. One file a task."""

from t2x.tasks.base import Task, TextTask
from t2x.tasks.causal_lm import CausalLM
from t2x.tasks.image_classification import ImageClassification
from t2x.tasks.masked_lm import MaskedLM
from t2x.tasks.translation import Translation

__all__ = ['CausalLM', 'ImageClassification', 'MaskedLM', 'Task', 'TextTask', 'Translation']
