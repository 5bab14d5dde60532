"""Scores of predicted classes as in GLUE (https://arxiv.org/abs/1804.07461): accuracy, F1, Matthews correlation."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from t2x.data.sources.subset import spread
from t2x.models.ranks import choice
from t2x.tasks.base import Task
from t2x.tasks.evaluators import Evaluation, TaskEvaluator
from t2x.tasks.sequence_classification import SequenceClassification

__all__ = ['ClassScores']


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassScores(TaskEvaluator):
  """Computes accuracy, macro_f1, with two classes the f1 of the second, and matthews, the Matthews correlation
  coefficient of predicted and true classes (Gorodkin 2004 for more than two).

  As in scikit-learn, the F1 of a class that is neither predicted nor a label is left out of macro_f1 and 0 as f1, and
  matthews is 0 if all predictions or all labels are one class. No class is predicted if several are the likeliest, or
  a logit is NaN.
  """

  kinds: ClassVar[tuple[type[Task], ...]] = (SequenceClassification,)

  def __call__(self, evaluated):
    """Returns the scores, and whether each example is right."""
    task, rows = evaluated.task, evaluated.rows(self._split(evaluated.task))
    indices = spread(min(self.num_examples or len(rows), len(rows)), len(rows))
    outputs = evaluated.predict(
      [rows[i] for i in indices],
      lambda model, batch: choice(task.predictions(model, batch, None)[0]),
    )
    pairs = [(int(output), int(row['label'])) for row, output in outputs]
    predicted, labels = np.array(pairs, int).reshape(-1, 2).T
    # The last column is that of no class, -1.
    counts = np.zeros((task.num_classes, task.num_classes + 1), int)
    np.add.at(counts, (labels, predicted), 1)
    right = (predicted == labels).astype(float)
    return Evaluation(
      {'examples': float(len(labels)), **scores(counts)}, examples={'accuracy': right}
    )


def scores(counts: Int[np.ndarray, 'labels predicted']) -> dict[str, float]:
  """Returns the scores of a confusion matrix: examples by label and prediction; a further column is no class."""
  hits, labels, predicted = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
  number, occurrences = counts.sum(), labels + predicted[: len(labels)]
  f1: Float[np.ndarray, ' classes'] = 2 * hits / np.maximum(occurrences, 1)
  occurring = f1[occurrences > 0]
  metrics = {
    'accuracy': float(hits.sum() / max(number, 1)),
    'macro_f1': float(occurring.mean()) if len(occurring) else 0.0,
    'matthews': _matthews(counts),
  }
  return metrics | ({'f1': float(f1[1])} if len(f1) == 2 else {})


def _matthews(counts: Int[np.ndarray, 'labels predicted']) -> float:
  labels, predicted = (counts.sum(axis=axis).astype(float) for axis in (1, 0))
  number, hits = labels.sum(), float(counts.trace())
  spreads = (number**2 - labels @ labels) * (number**2 - predicted @ predicted)
  return (
    float((number * hits - labels @ predicted[: len(labels)]) / spreads**0.5) if spreads else 0.0
  )
