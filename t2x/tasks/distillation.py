"""Knowledge distillation: a task that also learns the output distributions of a frozen teacher
(Hinton et al. 2015, https://arxiv.org/abs/1503.02531)."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.hyperparameters import Tunable, scalar
from t2x.models import Output
from t2x.ranges import Range
from t2x.tasks.base import Task, TaskOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation:
  """(1 - alpha) * the loss of the labels + alpha * temperature^2 * KL(teacher || student), where both
  distributions are softmax(logits / temperature).

  The second term is reported as `distillation`. `loss` stays the unscaled loss of the labels, which is
  what evaluation reports too.

  Attributes:
    alpha: share of the teacher; 1 leaves the labels out.
    temperature: softens both distributions.
  """

  alpha: Annotated[Tunable, Range('0 < x <= 1')] = 0.5
  temperature: Annotated[Tunable, Range('0 < x')] = 2.0

  def divergence(
    self, student: Float[Array, '*batch classes'], teacher: Float[Array, '*batch classes']
  ) -> Float[Array, '*batch']:
    """Returns temperature^2 * KL(teacher || student) in float32; no gradient reaches `teacher`."""
    temperature = scalar(self.temperature)
    ours, theirs = (
      jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
      for logits in (student, jax.lax.stop_gradient(teacher))
    )
    return temperature**2 * (jnp.exp(theirs) * (theirs - ours)).sum(axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillableTask(Task):
  """A task that predicts classes and can learn them from `Experiment.teacher`.

  Attributes:
    distillation: how the predictions of the teacher count in training; None if there is no teacher.
  """

  distillation: Distillation | None = None

  @abc.abstractmethod
  def predictions(
    self, model: Any, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> tuple[Float[Array, 'batch *targets classes'], Output]:
    """Returns the logits of the targets, in the shape of `target_weights`, and what the model returned.

    `key` None is evaluation.
    """

  @abc.abstractmethod
  def sums(
    self,
    model: Any,
    batch: Mapping[str, jax.Array],
    key: jax.Array | None,
    teacher: Any = None,
  ) -> TaskOutput:
    """As `Task.sums`, with the teacher's term if there is a teacher: the frozen model of
    `Experiment.teacher`, in training only."""

  def check_teacher(self, model, teacher):
    """The teacher must solve the same task, with the same classes."""
    name = type(self).__name__
    if self.distillation is None or teacher is None:
      if teacher is not None:
        raise UserError(
          f'Experiment.teacher is set and {name}.distillation is not: set it to @Distillation(), or '
          'remove the teacher'
        )
      if self.distillation is not None:
        raise UserError(
          f'{name}.distillation is set and Experiment.teacher is not: set it to @Teacher(), or remove '
          'the distillation'
        )
      return
    try:
      self.check_model(teacher)
    except UserError as error:
      raise UserError(f'Experiment.teacher: {error}') from error
    ours, theirs = (
      jax.eval_shape(lambda one, batch: self.predictions(one, batch, None)[0], one, self.spec(1))
      for one in (model, teacher)
    )
    if ours.shape != theirs.shape:
      raise UserError(
        f'Experiment.teacher gives {theirs.shape[-1]} logits for each target and Experiment.model '
        f'{ours.shape[-1]}: give both the same vocabulary or classes'
      )

  def weights(self, batch):
    """Adds the weight of the teacher's term: the same targets."""
    weights = super().weights(batch)
    return weights if self.distillation is None else weights | {'distillation': weights['loss']}

  def distilled(
    self,
    output: TaskOutput,
    logits: Float[Array, 'batch *targets classes'],
    weights: Float[Array, 'batch *targets'],
    teacher: Any,
    batch: Mapping[str, jax.Array],
  ) -> TaskOutput:
    """Returns `output` with the teacher's term, where there is a teacher.

    Args:
      output: without the term.
      logits: predictions of the student.
      weights: of the targets.
      teacher: the model; None in evaluation, and if the run has no teacher.
      batch: what the student has read.
    """
    if teacher is None or self.distillation is None:
      return output
    theirs, _ = self.predictions(teacher, batch, None)
    alpha = scalar(self.distillation.alpha)
    term = (self.distillation.divergence(logits, theirs) * weights).sum()
    return dataclasses.replace(
      output,
      coefficient=1.0 - alpha,
      further=output.further | {'distillation': alpha * term},
    )
