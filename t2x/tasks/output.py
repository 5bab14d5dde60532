"""Metrics and loss terms that a task computes from a batch."""

import dataclasses

import jax

from t2x.layers import NO_AUX, Aux
from t2x.models.losses import Sums

__all__ = ['TaskOutput']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TaskOutput:
  """Metrics and loss terms of a batch or of a micro-batch.

  Attributes:
    metrics: name -> (sum, weight). 'loss' is the main loss term.
    aux: auxiliary losses and metrics of the model, from `Output.aux`.
    further: name -> sum of each additional loss term, times its coefficient.
    coefficient: factor of the main loss term in training; not applied to the metric 'loss'.
  """

  metrics: Sums
  aux: Aux = NO_AUX
  further: dict[str, jax.Array] = dataclasses.field(default_factory=dict)
  coefficient: float | jax.Array = 1.0

  @property
  def terms(self) -> dict[str, jax.Array]:
    """The sum of each loss term by name.

    The train step divides each sum by its weight (`Task.weights` of the full batch) and minimises the total.
    """
    return {'loss': self.coefficient * self.metrics['loss'][0]} | self.further

  @property
  def reported(self) -> Sums:
    """The metrics of the task and of the model's layers."""
    return {**self.metrics, **self.aux.metrics}
