"""Regression on texts or pairs of texts, such as semantic textual similarity (Cer et al. 2017,
https://arxiv.org/abs/1708.00055), and the correlations of its predictions."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from t2x.base.ranges import NonEmpty, Text
from t2x.data import ScoredTexts
from t2x.data.sources.subset import spread
from t2x.models.ranks import ROUNDING
from t2x.tasks.base import Task
from t2x.tasks.evaluators import Evaluation, TaskEvaluator
from t2x.tasks.labelled import LabelledTask

__all__ = ['Correlations', 'TextRegression']

# The prediction and the number of an example, of which evaluation computes the correlation.
_PAIR = ('pair/x', 'pair/y')


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRegression(LabelledTask):
  """Predicts a number for a text, or for a pair of texts, by the mean squared error, as BERT does for STS-B
  (https://arxiv.org/abs/1810.04805, section 4.1).

  The head has one class logit, the prediction. Metrics: loss; pearson, the correlation of predictions and numbers over
  the split (in training that of deviations from the means of micro-batches); `Correlations` also computes Spearman's.

  Attributes:
    score: name of the field of the number.
    fields: one or two names of text fields.
    further_orders: other orders of the fields, as in `SequenceClassification`.
  """

  score: Text
  fields: Annotated[Sequence[Text], NonEmpty] = ('text',)
  further_orders: Sequence[Sequence[Text]] = ()

  unit: ClassVar[str] = 'examples'
  outputs: ClassVar[str] = 'class logits'
  head: ClassVar[str] = 'SequenceClassifier'
  numbers: ClassVar[Mapping[str, Any]] = {'target': jnp.float32}
  best_metric: ClassVar[str] = 'pearson'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'
  example_metrics: ClassVar[frozenset[str]] = frozenset({'loss', *_PAIR})

  @property
  def plans(self):
    """One for each order of the fields."""
    return [ScoredTexts(length=self.length, score=self.score, fields=f) for f in self.orders]

  def predictions(self, model, batch, key):
    """Returns the predicted number of each example in float32, and the model's output."""
    logits, out = self.class_logits(model, batch, key)
    return logits[:, 0], out

  def sums(self, model, batch, key):
    """Returns the loss, and predictions and numbers with their second moments about the means."""
    x, out = self.predictions(model, batch, key)
    y, weights = batch['target'], self.weighted_targets(batch)
    total = weights.sum()
    # Moments about 0 would lose the variance of large numbers to rounding.
    a, b = (v - (v * weights).sum() / jnp.maximum(total, 1e-9) for v in (x, y))
    values = {'loss': jnp.square(x - y), 'pair/x': x, 'pair/y': y}
    values |= {'moment/xx': a * a, 'moment/yy': b * b, 'moment/xy': a * b}
    sums = {name: ((value * weights).sum(), total) for name, value in values.items()}
    return self.with_auxiliaries(sums, model, out, batch, key)

  def summarise(self, means, info=None):
    """Returns the metrics with pearson in place of the moments; it is 0 if one side is constant."""
    metrics = super().summarise(means, info)
    xx, yy, xy = (metrics.pop(f'moment/{name}') for name in ('xx', 'yy', 'xy'))
    for name in _PAIR:
      del metrics[name]
    return metrics | {'pearson': xy / (xx * yy) ** 0.5 if xx * yy else 0.0}

  def of_examples(self, examples):
    """Returns pearson over all examples in float64, and the loss of each."""
    others = {name: values for name, values in examples.items() if name not in _PAIR}
    return {'pearson': _pearson(*(examples[name].astype(np.float64) for name in _PAIR))}, others

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Returns the predicted number of each prompt; the texts of a pair are separated by a tab."""
    texts = [prompt.split('\t', len(self.fields) - 1) for prompt in prompts]
    examples = [dict(zip(self.fields, row, strict=True)) | {self.score: 0.0} for row in texts]
    _, values = self.run_on_examples(
      lambda m, batch: self.predictions(m, batch, None)[0], model, examples
    )
    return [
      [{'text': f'{value:.4g}', 'tokens': [], 'log_probs': [], 'score': float(value)}]
      for value in values
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Correlations(TaskEvaluator):
  """Computes Pearson's and Spearman's correlation of predictions and numbers of `TextRegression`."""

  kinds: ClassVar[tuple[type[Task], ...]] = (TextRegression,)

  def __call__(self, evaluated):
    """Returns the correlations, and the squared error of each example."""
    task, rows = evaluated.task, evaluated.rows(self._split(evaluated.task))
    indices = spread(min(self.num_examples or len(rows), len(rows)), len(rows))
    chosen = [rows[i] for i in indices]
    pairs = evaluated.predict(chosen, lambda model, batch: task.predictions(model, batch, None)[0])
    x, y = np.array([(output, row['target']) for row, output in pairs], np.float64).T
    metrics = {
      'examples': float(len(x)),
      'pearson': _pearson(x, y),
      'spearman': _pearson(_ranks(x), _ranks(y)),
    }
    return Evaluation(metrics, examples={'squared_error': np.square(x - y)})


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
  # Predictions that differ by rounding only are equal.
  constant = any(np.ptp(values) <= ROUNDING * np.abs(values).max() for values in (x, y))
  x, y = x - x.mean(), y - y.mean()
  size = np.sqrt((x * x).sum() * (y * y).sum())
  return 0.0 if constant or not size else float((x * y).sum() / size)


def _ranks(values: np.ndarray) -> np.ndarray:
  """Returns the rank of each value; equal values have their mean rank. NaN if a value is."""
  if np.isnan(values).any():
    return np.full(len(values), np.nan)
  _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
  return (np.cumsum(counts) - (counts - 1) / 2)[index]
