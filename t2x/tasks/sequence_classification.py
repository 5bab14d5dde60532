"""Classification of texts or pairs of texts (BERT, https://arxiv.org/abs/1810.04805; GPT-1, Radford et al.
2018)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Text, TunableRate
from t2x.data import LabelledTexts
from t2x.models.losses import classification_sums
from t2x.models.ranks import choice
from t2x.tasks.auxiliary import Auxiliary
from t2x.tasks.base import OF_EXAMPLES
from t2x.tasks.distillation import TeacherLoss
from t2x.tasks.labelled import LabelledTask
from t2x.tasks.losses import class_answers, f1_sums, predicted_sums

__all__ = ['SequenceClassification']


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceClassification(LabelledTask):
  """Predicts the class of a text or of a pair of texts. Examples have a `label` and the text `fields`.

  Metrics, as in scikit-learn: accuracy; macro_f1, the mean F1 of the classes that occur in the data or in the
  predictions; with two classes also f1 of the second class.

  Attributes:
    labels: names of the classes.
    fields: one or two names of text fields.
    further_orders: other orders of the fields; the model reads each order, and the classifier the sum of their vectors,
      as GPT-1 for the similarity of two texts.
    label_smoothing: label smoothing as in `cross_entropy`, in training only.
    distillation: the teacher's term, `Distillation` or `HardDistillation`; None without a teacher.
    auxiliary: an auxiliary objective with the name 'lm' (`LanguageModelling`); other names: `auxiliaries`.
  """

  # A field without a default; LabelledTask has the value of tasks without classes.
  labels: Annotated[Sequence[str], NonEmpty] = dataclasses.field()
  fields: Annotated[Sequence[Text], NonEmpty] = ('text',)
  further_orders: Sequence[Sequence[Text]] = ()
  label_smoothing: TunableRate = 0.0
  distillation: TeacherLoss | None = None
  auxiliary: Auxiliary | None = None

  learns_from_teacher: ClassVar[bool] = True
  unit: ClassVar[str] = 'examples'
  outputs: ClassVar[str] = 'class logits'
  head: ClassVar[str] = 'SequenceClassifier'
  numbers: ClassVar[Mapping[str, Any]] = {'label': jnp.int32}
  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'
  example_metrics: ClassVar[frozenset[str]] = frozenset({'loss', 'accuracy', *OF_EXAMPLES})

  @property
  def objectives(self):
    return (
      self.auxiliaries if self.auxiliary is None else {**self.auxiliaries, 'lm': self.auxiliary}
    )

  @property
  def plans(self):
    """One for each order of the fields."""
    labels = tuple(self.labels)
    return [LabelledTexts(length=self.length, labels=labels, fields=f) for f in self.orders]

  def predictions(self, model, batch, key):
    return self.class_logits(model, batch, key)

  def sums(self, model, batch, key, teacher=None):
    """Returns loss, accuracy and the F1 counts of each class over the examples with weight 1."""
    logits, out = self.predictions(model, batch, key)
    weights = self.weighted_targets(batch)
    smoothing = 0.0 if key is None else self.label_smoothing
    sums = classification_sums(logits, batch['label'], weights, smoothing)
    predicted = choice(logits)
    sums |= f1_sums(predicted, batch['label'], weights, self.labels)
    if key is None:
      sums |= predicted_sums(predicted, batch['label'], weights)
    output = self.with_auxiliaries(sums, model, out, batch, key)
    return self.distilled(output, logits, out.x, teacher, batch)

  def summarise(self, means, info=None):
    """Returns the metrics with macro_f1 and, with two classes, f1 in place of the F1 of each class."""
    metrics = super().summarise(means, info)
    names = [f'f1/{label}' for label in self.labels]
    by_class = [metrics.pop(name) for name in names]
    occurring = [f1 for f1, name in zip(by_class, names, strict=True) if means[name][1] > 0]
    metrics['macro_f1'] = float(np.mean(occurring)) if occurring else 0.0
    return metrics | ({'f1': by_class[1]} if len(by_class) == 2 else {})

  def check_prompt(self, prompt):
    """Raises UserError if the prompt of a pair is not two texts separated by a tab."""
    if len(self.fields) > 1 and prompt.count('\t') != len(self.fields) - 1:
      raise UserError(f'a prompt must be {len(self.fields)} texts separated by a tab')

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Returns the likeliest classes of each prompt; the texts of a pair are separated by a tab."""
    examples = []
    for prompt in prompts:
      self.check_prompt(prompt)
      texts = prompt.split('\t') if len(self.fields) > 1 else [prompt]
      examples.append(dict(zip(self.fields, texts, strict=True)) | {'label': self.labels[0]})
    _, logits = self.run_on_examples(
      lambda m, batch: self.predictions(m, batch, None)[0], model, examples
    )
    return class_answers(logits, self.labels, num_return)
