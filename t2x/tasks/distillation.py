"""Knowledge distillation from a frozen teacher: from its probabilities (Hinton et al. 2015,
https://arxiv.org/abs/1503.02531), its decisions (DeiT, https://arxiv.org/abs/2012.12877) and its hidden vectors
(DistilBERT, https://arxiv.org/abs/1910.01108)."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Tunable, scalar
from t2x.base.names import missing
from t2x.base.ranges import Range, Text, TunableNonNegative
from t2x.models import Model, Output
from t2x.models.losses import cross_entropy
from t2x.tasks.former import BASES
from t2x.tasks.output import TaskOutput

__all__ = [
  'Distillation',
  'HardDistillation',
  'HiddenCosine',
  'HiddenLoss',
  'TeacherLoss',
]

if not TYPE_CHECKING:  # Type checkers would accept every name.
  __getattr__ = missing(__name__, BASES)


@runtime_checkable
class HiddenLoss(Protocol):
  """Loss between the hidden vectors of student and teacher, whose widths are equal."""

  def __call__(
    self, student: Float[Array, '*batch d_model'], teacher: Float[Array, '*batch d_model']
  ) -> Float[Array, '*batch']:
    """Returns the loss of each vector times its coefficient, in float32."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenCosine(HiddenLoss):
  """weight * (1 - the cosine of the two vectors), the third term of DistilBERT's loss.

  Attributes:
    weight: coefficient.
  """

  weight: TunableNonNegative = 1.0

  def __call__(self, student, teacher):
    x, y = student.astype(jnp.float32), teacher.astype(jnp.float32)
    lengths = jnp.square(x).sum(axis=-1) * jnp.square(y).sum(axis=-1)
    return scalar(self.weight) * (1 - (x * y).sum(axis=-1) * jax.lax.rsqrt(lengths + 1e-12))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherLoss(abc.ABC):
  """(1 - alpha) * the loss of the labels + alpha * a loss of the teacher's predictions.

  The second term is reported as `distillation`. `loss` is the unscaled loss of the labels, in training as in
  evaluation. The mean of each loss in `hidden` over the tokens that are not padding is added, and reported as
  `distillation_NAME`.

  Attributes:
    alpha: weight of the teacher's term; 1 ignores the labels.
    hidden: losses between the last hidden vectors of student and teacher, by name.
  """

  alpha: Annotated[Tunable, Range('0 < x <= 1')] = 0.5
  hidden: Mapping[Text, HiddenLoss] = dataclasses.field(default_factory=dict)

  @abc.abstractmethod
  def divergence(
    self, student: Float[Array, '*batch classes'], teacher: Float[Array, '*batch classes']
  ) -> Float[Array, '*batch']:
    """Returns the loss of the student's logits for each target; no gradient reaches `teacher`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(TeacherLoss):
  """Distillation of probabilities: the teacher's term is temperature^2 * KL(teacher || student), where both
  distributions are softmax(logits / temperature).

  DistilBERT's 5 * KL + 2 * cross-entropy + cosine loss, both of the first over the masked tokens
  (`restrict_ce_to_mask` of its code), is 7 times that of alpha = 5/7 and a `HiddenCosine` of weight 1/7.

  Attributes:
    temperature: softmax temperature of both distributions.
  """

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
class HardDistillation(TeacherLoss):
  """Distillation of decisions: the teacher's term is the cross-entropy with the teacher's most probable class (DeiT,
  https://arxiv.org/abs/2012.12877, equation 3)."""

  def divergence(self, student, teacher):
    """Returns -log p(the teacher's class) in float32."""
    return cross_entropy(student, jnp.argmax(teacher, axis=-1))


@runtime_checkable
class Learner(Protocol):
  """Interface of tasks that learn from a teacher; they declare `learns_from_teacher = True`.

  Attributes:
    distillation: the terms of the teacher, a setting; None without a teacher.
  """

  distillation: TeacherLoss | None

  def spec(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of a batch by name."""
    ...

  def check_model(self, model: Model) -> None:
    """Raises UserError if the model does not fit the task."""
    ...

  def predictions(
    self, model: nnx.Module, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> tuple[Float[Array, 'batch *targets classes'], Output]:
    """Returns the logits of the targets, in the shape of `target_weights`, and the output of the model.

    `key` is None in evaluation, and for a teacher.
    """
    ...

  def token_weights(self, batch: Mapping[str, jax.Array]) -> Float[Array, 'batch length'] | None:
    """Returns the weight of each hidden vector of `predictions`; None if there are no hidden vectors."""
    ...

  def teacher_weights(self, batch: Mapping[str, jax.Array]) -> Float[Array, 'batch *targets']:
    """Returns the weights of the targets in the teacher's term of the logits."""
    ...


def check_teacher(task: Learner, model: Any, teacher: Any) -> None:
  """Raises UserError if the teacher does not fit the task, or has other classes or another width than the model.

  Args:
    task: the task; it has `distillation`, or there is a teacher.
    model: the model's shapes.
    teacher: the teacher's shapes; None without a teacher.
  """
  name = type(task).__name__
  if task.distillation is None:
    raise UserError(
      f'Experiment.teacher is set, but {name}.distillation is not: set it to @Distillation(), or '
      'remove the teacher'
    )
  if teacher is None:
    raise UserError(
      f'{name}.distillation is set, but Experiment.teacher is not: set it to @Teacher(), or remove '
      'the distillation'
    )
  try:
    task.check_model(teacher)
  except UserError as error:
    raise UserError(f'Experiment.teacher: {error}') from error

  def arrays(network, batch):
    logits, out = task.predictions(network, batch, None)
    return logits, out.x

  (logits, x), (teacher_logits, teacher_x) = (
    jax.eval_shape(arrays, network, task.spec(1)) for network in (model, teacher)
  )
  if logits.shape != teacher_logits.shape:
    raise UserError(
      f'Experiment.teacher has {teacher_logits.shape[-1]} logits for each target, but '
      f'Experiment.model has {logits.shape[-1]}: use the same vocabulary or classes for both'
    )
  if not task.distillation.hidden:
    return
  if jax.eval_shape(task.token_weights, task.spec(1)) is None:
    raise UserError(f'{name} has no hidden vectors of tokens: leave out Distillation.hidden')
  if x.shape != teacher_x.shape:
    raise UserError(
      f'Experiment.teacher has hidden vectors of width {teacher_x.shape[-1]}, but those of Experiment.model '
      f'have {x.shape[-1]}: use the same width for both, or leave out Distillation.hidden'
    )


def teacher_term_weights(
  task: Learner, distillation: TeacherLoss, batch: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
  """Returns the weights of the loss terms of `distillation` by name."""
  present = task.token_weights(batch)
  return {'distillation': task.teacher_weights(batch).sum()} | {
    _hidden(name): present.sum() for name in distillation.hidden if present is not None
  }


def distilled(
  task: Learner | None,
  output: TaskOutput,
  logits: Float[Array, 'batch *targets classes'],
  x: Array,
  teacher: Any,
  batch: Mapping[str, jax.Array],
) -> TaskOutput:
  """Adds the teacher's terms to `output`, if there is a teacher.

  Args:
    task: the task; None: it cannot learn from a teacher.
    output: metrics and loss terms without those of the teacher.
    logits: logits of the student; of several heads, those of the head that learns from the teacher.
    x: hidden vectors of the student, that of its `predictions`.
    teacher: the teacher; None in evaluation and without distillation.
    batch: the student's inputs.
  """
  if teacher is None or task is None or task.distillation is None:
    return output
  teacher_logits, out = task.predictions(teacher, batch, None)
  alpha = scalar(task.distillation.alpha)
  losses = task.distillation.divergence(logits, teacher_logits)
  term = (losses * task.teacher_weights(batch)).sum()
  present, teacher_x = task.token_weights(batch), jax.lax.stop_gradient(out.x)
  terms = {'distillation': alpha * term} | {
    _hidden(name): (loss(x, teacher_x) * present).sum()
    for name, loss in task.distillation.hidden.items()
    if present is not None
  }
  return dataclasses.replace(output, coefficient=1.0 - alpha, further=output.further | terms)


def _hidden(name: str) -> str:
  """Returns the name of the loss term of a loss in `Distillation.hidden`."""
  return f'distillation_{name}'
