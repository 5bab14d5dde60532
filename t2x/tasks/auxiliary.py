"""Auxiliary training objectives of a task."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers import NO_AUX, Aux, named_key
from t2x.models import Model, Output
from t2x.models.losses import Sums
from t2x.tasks.base import Task
from t2x.tasks.output import TaskOutput

__all__ = ['Auxiliary', 'AuxiliaryOutput']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AuxiliaryOutput:
  """Result of an auxiliary objective for a batch or a micro-batch.

  Attributes:
    total: the sum of the loss term times its coefficient, float32 [].
    metrics: name -> (sum, weight).
    aux: auxiliary losses and metrics of parts of the model that only the objective runs.
  """

  total: Array
  metrics: Sums
  aux: Aux = NO_AUX


@runtime_checkable
class Auxiliary(Protocol):
  """An additional loss on the hidden vectors of a task's batch.

  A task has auxiliaries by name: the loss term of the objective NAME is reported as NAME, its metrics as NAME_METRIC.
  """

  def check_model(self, model: Model, task: Task) -> None:
    """Raises UserError if the model cannot learn the objective from the rows of the task."""

  def term_weight(
    self, batch: Mapping[str, jax.Array], weights: Float[Array, 'batch *targets']
  ) -> Float[Array, '']:
    """Returns the weight of the loss term, before the forward pass: by default that of the task's own loss term.

    Args:
      batch: the batch of the step, with all micro-batches.
      weights: the weight of each target in the task's own loss term.
    """
    return weights.sum()

  def __call__(
    self,
    model: Model,
    out: Output,
    batch: Mapping[str, jax.Array],
    weights: Float[Array, 'batch *targets'],
    key: Array | None,
  ) -> AuxiliaryOutput:
    """Returns the loss term and the metrics.

    Args:
      model: the model.
      out: the model's output for the rows of the batch, with the hidden vectors [batch, length, d_model].
      batch: the batch or a micro-batch.
      weights: the weight of each target in the task's own loss term.
      key: random keys of the rows in this step, [batch]; None in evaluation.
    """
    ...


def check_auxiliaries(auxiliaries: Mapping[str, Auxiliary], task: Task, model: Model) -> None:
  """Raises UserError if an objective has the name of a loss term of the task, or does not support the task or model."""
  for name, auxiliary in auxiliaries.items():
    if name == 'loss' or name.startswith('distillation'):
      raise UserError(
        f"{type(task).__name__}.auxiliaries['{name}']: '{name}' is a loss term of the task; use another name"
      )
    auxiliary.check_model(model, task)


def with_auxiliaries(
  auxiliaries: Mapping[str, Auxiliary],
  task: Task,
  metrics: Sums,
  model: Model,
  out: Output,
  batch: Mapping[str, jax.Array],
  key: Array | None,
) -> TaskOutput:
  """Returns the result of `Task.sums` with auxiliary objectives.

  Args:
    auxiliaries: the objectives by name.
    task: the task.
    metrics: the metrics of the task.
    model: the model.
    out: its output for the rows of the batch.
    batch: the batch.
    key: random keys of the rows; None in evaluation.

  Raises:
    UserError: two metrics have one name.
  """
  aux, terms = out.aux, {}
  for name, auxiliary in auxiliaries.items():
    own = named_key(key, f'task.{name}')
    result = auxiliary(model, out, batch, task.weighted_targets(batch), own)
    added = {f'{name}_{metric}': sums for metric, sums in result.metrics.items()}
    if repeated := sorted(metrics.keys() & added.keys()):
      raise UserError(
        f"{type(task).__name__}.auxiliaries['{name}']: the task has a metric '{repeated[0]}'; use another name"
      )
    metrics, aux, terms[name] = metrics | added, aux + result.aux, result.total
  return TaskOutput(metrics, aux, terms)


def check_columns(name: str, task: Task, *columns: str) -> int:
  """Returns the number of tokens of a row of `task`.

  Raises:
    UserError: batches of the task lack one of the columns that the objective `name` reads.
  """
  spec = task.spec(1)
  if missing := [column for column in columns if column not in spec]:
    raise UserError(
      f'{name} reads the column {missing[0]!r}, which batches of {type(task).__name__} do not have: they have '
      f'{", ".join(spec)}'
    )
  return spec['tokens'].shape[1]
