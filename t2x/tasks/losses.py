"""Losses and metrics of classification tasks; the cross-entropy is in `t2x.models.losses`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t2x.base.ranges import Fraction, NonNegative
from t2x.models.losses import Sums

__all__ = ['ClassLoss', 'MarginLoss']


@runtime_checkable
class ClassLoss(Protocol):
  """Loss of the class scores of an example."""

  def __call__(
    self, scores: Float[Array, 'batch classes'], labels: Int[Array, ' batch']
  ) -> Float[Array, ' batch']:
    """Returns the loss of each example."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginLoss(ClassLoss):
  """Squared margins of scores between 0 and 1: max(0, upper - s)^2 of the label plus `others` times the sum of
  max(0, s - lower)^2 of all other classes (capsules: https://arxiv.org/abs/1710.09829, equation 4).

  Attributes:
    upper: score from which the label has no loss.
    lower: score up to which another class has no loss.
    others: factor of the losses of other classes.
  """

  upper: Fraction = 0.9
  lower: Fraction = 0.1
  others: NonNegative = 0.5

  def __call__(self, scores, labels):
    is_label = jax.nn.one_hot(labels, scores.shape[-1])
    missing = jnp.square(jnp.maximum(self.upper - scores, 0))
    excess = jnp.square(jnp.maximum(scores - self.lower, 0))
    return (is_label * missing + self.others * (1 - is_label) * excess).sum(axis=-1)


def f1_sums(
  predicted: Int[Array, '*batch'],
  labels: Int[Array, '*batch'],
  weights: Float[Array, '*batch'],
  names: Sequence[str],
) -> Sums:
  """Returns the F1 of each class as a pair of counts that can be summed over batches.

  `f1/NAME` is (2 * true positives, predictions + labels).
  """
  sums = {}
  for number, name in enumerate(names):
    is_predicted, is_label = ((ids == number) * weights for ids in (predicted, labels))
    hits = (is_predicted * (labels == number)).sum()
    sums[f'f1/{name}'] = (2 * hits, is_predicted.sum() + is_label.sum())
  return sums


def predicted_sums(
  predicted: Int[Array, '*batch'], labels: Int[Array, '*batch'], weights: Float[Array, '*batch']
) -> Sums:
  """Returns sums from which evaluations record the label and the prediction of each example."""
  values = {'example/label': labels, 'example/prediction': predicted}
  return {name: ((value * weights).sum(), weights.sum()) for name, value in values.items()}


def class_answers(
  logits: Float[np.ndarray, 'rows classes'], names: Sequence[str], count: int
) -> list[list[dict[str, Any]]]:
  """Returns the likeliest classes of each row, as `Task.generate` does, with their probabilities.

  Args:
    logits: class logits.
    names: names of the classes; empty: their numbers.
    count: number of classes per row.
  """
  log_probs = np.asarray(jax.nn.log_softmax(logits), np.float64)

  def answer(row: int, label: int) -> dict[str, Any]:
    score = float(log_probs[row, label])
    text = names[label] if names else str(label)
    fields = {'text': text, 'tokens': [label], 'log_probs': [score], 'score': score}
    return fields | {'probability': math.exp(score)}

  order = np.argsort(-log_probs, axis=1, kind='stable')[:, :count]
  return [[answer(row, int(label)) for label in labels] for row, labels in enumerate(order)]


def present_tokens(batch: Mapping[str, jax.Array]) -> Float[Array, 'batch length']:
  """Returns the weights of the tokens of text rows: 0 for padding, otherwise 1 times the loss weight of the row."""
  present = (batch['segments'] != 0).astype(jnp.float32)
  rows = batch.get('loss_weight')
  return present if rows is None else present * rows[:, None]
