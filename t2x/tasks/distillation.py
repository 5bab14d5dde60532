"""Knowledge distillation from a frozen teacher (Hinton et al. 2015, https://arxiv.org/abs/1503.02531)."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Tunable, scalar
from t2x.base.ranges import Range
from t2x.layers.constraints import constrain
from t2x.models import Output
from t2x.tasks.base import Task, TaskOutput
from t2x.tasks.text import JoinedDocuments

__all__ = ['DistillableTask', 'Distillation']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation:
  """(1 - alpha) * the loss of the labels + alpha * temperature^2 * KL(teacher || student), where both
  distributions are softmax(logits / temperature).

  The second term is reported as `distillation`. `loss` is the unscaled loss of the labels, in training as in
  evaluation.

  Attributes:
    alpha: weight of the teacher's term; 1 ignores the labels.
    temperature: softmax temperature of both distributions.
  """

  alpha: Annotated[Tunable, Range('0 < x <= 1')] = 0.5
  temperature: Annotated[Tunable, Range('1e-6 <= x <= 1e6')] = 2.0

  def divergence(
    self, student: Float[Array, '*batch classes'], teacher: Float[Array, '*batch classes']
  ) -> Float[Array, '*batch']:
    """Returns temperature^2 * KL(teacher || student) in float32; no gradient reaches `teacher`."""
    temperature = scalar(self.temperature)
    log_q, log_p = (
      jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
      for logits in (student, jax.lax.stop_gradient(teacher))
    )
    return temperature**2 * (jnp.exp(log_p) * (log_p - log_q)).sum(axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillableTask(Task):
  """A task that predicts classes and supports distillation from `Experiment.teacher`.

  Attributes:
    distillation: weight and temperature of the teacher's term; None without a teacher.
  """

  distillation: Distillation | None = None

  @abc.abstractmethod
  def predictions(
    self, model: Any, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> tuple[Float[Array, 'batch *targets classes'], Output]:
    """Returns the logits of the targets, in the shape of `target_weights`, and the output of the model.

    `key` is None in evaluation.
    """

  @abc.abstractmethod
  def sums(
    self,
    model: Any,
    batch: Mapping[str, jax.Array],
    key: jax.Array | None,
    teacher: Any = None,
  ) -> TaskOutput:
    """Returns the sums of `Task.sums`, with the teacher's term if there is a teacher.

    Args:
      model: the model.
      batch: arrays as in `spec`.
      key: random keys of the rows in this step, [batch]; None in evaluation.
      teacher: the frozen model of `Experiment.teacher`, in training only.
    """

  def check_teacher(self, model, teacher):
    """Raises UserError if the teacher does not fit the task or has other classes than the model."""
    name = type(self).__name__
    if self.distillation is None or teacher is None:
      if teacher is not None:
        raise UserError(
          f'Experiment.teacher is set, but {name}.distillation is not: set it to @Distillation(), or '
          'remove the teacher'
        )
      if self.distillation is not None:
        raise UserError(
          f'{name}.distillation is set, but Experiment.teacher is not: set it to @Teacher(), or remove '
          'the distillation'
        )
      return
    try:
      self.check_model(teacher)
    except UserError as error:
      raise UserError(f'Experiment.teacher: {error}') from error
    logits, teacher_logits = (
      jax.eval_shape(lambda m, batch: self.predictions(m, batch, None)[0], network, self.spec(1))
      for network in (model, teacher)
    )
    if logits.shape != teacher_logits.shape:
      raise UserError(
        f'Experiment.teacher has {teacher_logits.shape[-1]} logits for each target, but '
        f'Experiment.model has {logits.shape[-1]}: use the same vocabulary or classes for both'
      )

  def weights(self, batch):
    """Returns the weights of the loss terms; the teacher's term has the weight of the main term."""
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
    """Adds the teacher's term to `output`, if there is a teacher.

    Args:
      output: metrics and loss terms without the teacher's term.
      logits: logits of the student.
      weights: weights of the targets.
      teacher: the teacher; None in evaluation and without distillation.
      batch: the student's inputs.
    """
    if teacher is None or self.distillation is None:
      return output
    teacher_logits, _ = self.predictions(teacher, batch, None)
    alpha = scalar(self.distillation.alpha)
    term = (self.distillation.divergence(logits, teacher_logits) * weights).sum()
    return dataclasses.replace(
      output,
      coefficient=1.0 - alpha,
      further=output.further | {'distillation': alpha * term},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillableTokens(DistillableTask, JoinedDocuments):
  """A task that predicts tokens of packed documents and supports distillation."""

  # The column of the batch with the tokens to predict, and the logical axis of their number per row.
  target: ClassVar[str] = 'tokens'
  target_axis: ClassVar[str | None] = 'length'

  @abc.abstractmethod
  def hidden(self, model: Any, batch: Mapping[str, jax.Array], key: jax.Array | None) -> Output:
    """Returns the model's output with the hidden vectors of the rows."""

  def targets_of(
    self, x: Float[Array, 'batch length d_model'], batch: Mapping[str, jax.Array]
  ) -> Float[Array, 'batch targets d_model']:
    """Returns the hidden vectors of the targets, by default those of all tokens."""
    return x

  def _logits(self, model, x):
    return constrain(model.logits(x), 'batch', self.target_axis, 'vocab')

  def predictions(self, model, batch, key):
    out = self.hidden(model, batch, key)
    return self._logits(model, self.targets_of(out.x, batch)), out

  def sums(self, model, batch, key, teacher=None):
    """Returns loss and accuracy over the targets that are not padding."""
    out, labels = self.hidden(model, batch, key), batch[self.target]
    x = self.targets_of(out.x, batch)
    sums = self.token_sums(model, x, labels, batch, key, length_axis=self.target_axis)
    output = self.with_auxiliaries(sums, model, out, batch, key)
    if teacher is None:
      return output
    weights = self.weighted_targets(batch)
    return self.distilled(output, self._logits(model, x), weights, teacher, batch)
