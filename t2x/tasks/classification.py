"""Base class of tasks that predict the class of an example with a vector of logits."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Tunable
from t2x.base.ranges import Size, TunableRate
from t2x.data import Source, check_label, label_values
from t2x.models import Model
from t2x.models.losses import Sums, classification_sums
from t2x.models.ranks import choice, rank
from t2x.parallel import runs_model
from t2x.tasks.base import OF_EXAMPLES, SOURCE_CLASSES, Task, example_weights
from t2x.tasks.distillation import TeacherLoss
from t2x.tasks.losses import ClassLoss, class_answers, predicted_sums
from t2x.tasks.output import TaskOutput
from t2x.tasks.prediction import on_devices

__all__ = ['Classification']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Task):
  """Predicts the class of an example. Subclasses define its one input.

  Attributes:
    num_classes: number of classes.
    label_smoothing: label smoothing as in `cross_entropy`, in training only.
    loss: loss of the scores that the model computes. None: cross-entropy.
    distillation: the teacher's term, `Distillation` or `HardDistillation`; None without a teacher.
  """

  num_classes: Size
  label_smoothing: TunableRate = 0.0
  loss: ClassLoss | None = None
  distillation: TeacherLoss | None = None

  learns_from_teacher: ClassVar[bool] = True
  prompts: ClassVar[Literal['texts', 'files']] = 'files'
  outputs: ClassVar[str] = 'class logits'
  head: ClassVar[str] = 'Classifier'
  unit: ClassVar[str] = 'examples'
  example_metrics: ClassVar[frozenset[str]] = frozenset(
    {'loss', 'accuracy', 'top5_accuracy', *OF_EXAMPLES}
  )

  class_names = SOURCE_CLASSES

  def check_rows(self, split, rows):
    """Also raises UserError for labels out of range, if the labels can be read without the inputs."""
    Task.check_rows(self, split, rows)
    for label in sorted(label_values(rows) or (), key=repr):
      check_label(label, self.num_classes, f"the split '{split}' of {self.source}")

  @abc.abstractmethod
  def spec(self, batch_size):
    """Returns label: int32 and weight: float32 [batch]; subclasses add their input."""
    return {
      'label': jax.ShapeDtypeStruct((batch_size,), jnp.int32),
      'weight': jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }

  def check_model(self, model):
    """Also raises UserError if the head has another number of classes."""
    super().check_model(model)
    check_classes(self, model)

  target_weights = example_weights

  def predictions(self, model, batch, key):
    (name,) = self.inputs
    out = model(batch[name], key=key)
    return out.x, out

  def sums(self, model, batch, key, teacher=None):
    """Returns loss, accuracy and, with more than five classes, top-5 accuracy."""
    labels, weights = batch['label'], self.weighted_targets(batch)
    logits, out = self.predictions(model, batch, key)
    heads = self.heads(logits, out, key)
    sums = class_sums(self, heads[0], labels, weights, train=key is not None)
    if key is None:
      sums |= predicted_sums(choice(heads[0]), labels, weights)
    return self.distilled(TaskOutput(sums, out.aux), heads[1], out.x, teacher, batch)

  def read(self, path: Path) -> Any:
    """Returns the input in a file, as an example of the source has it.

    Raises:
      UserError: the file cannot be read.
    """
    raise UserError(f'{type(self).__name__} reads no files: pass a split to `t2x eval`')

  def prepared(self, path: str | Path) -> Mapping[str, np.ndarray]:
    """Returns the input in a file as the model reads it, with a label of 0."""
    (name,) = self.inputs
    transform = self.transform(train=False)
    assert transform is not None
    row = transform({name: self.read(Path(path)), 'label': 0}, np.random.default_rng(0))
    expected = self.spec(1)[name].shape[1:]
    if row[name].shape != expected:
      raise UserError(
        f'{path} is of shape {row[name].shape}, but the model reads {expected}: resize it'
      )
    return row

  def check_prompt(self, prompt):
    """Raises UserError if a prompt is no file of an input."""
    self.prepared(prompt)

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Returns the likeliest classes of each file."""
    (name,) = self.inputs
    batch = {name: np.stack([self.prepared(prompt)[name] for prompt in prompts])}
    run = jax.jit(runs_model(lambda m, b: self.predictions(m, b, None)[0]))
    logits = on_devices(run, model, batch)
    return class_answers(logits, self.known_names, num_return)

  @property
  def known_names(self) -> Sequence[str]:
    """The names of the classes; empty if the source has none, or is not on this machine."""
    try:
      return self.class_names
    except UserError:
      return ()

  def heads(self, logits, out, key):
    """Returns the logits that learn from labels and those that learn from a teacher: of a model with two heads
    different ones in training, and their mean in evaluation.

    Raises:
      UserError: in training, if a head would learn nothing.
    """
    if key is None or not out.heads:
      return logits, logits
    if self.distillation is None:
      raise UserError(
        f'the model has a head that learns from a teacher, but {type(self).__name__}.distillation '
        'is not set: set it to @HardDistillation(), or use @VisionTransformer'
      )
    return out.heads['labels'], out.heads['teacher']


@runtime_checkable
class Classes(Protocol):
  """Interface of tasks that predict the class of an example."""

  @property
  def source(self) -> Source:
    """The examples."""
    ...

  @property
  def num_classes(self) -> int:
    """Number of classes."""
    ...

  @property
  def label_smoothing(self) -> Tunable:
    """Label smoothing as in `cross_entropy`, in training only."""
    ...

  @property
  def loss(self) -> ClassLoss | None:
    """The loss of the scores; None: cross-entropy."""
    ...


def check_classes(task: Classes, model: Model) -> None:
  """Raises UserError if the head has another number of classes, or label smoothing would be ignored."""
  kind = type(task).__name__
  if model.spec.num_classes != task.num_classes:
    raise UserError(
      f'the model has {model.spec.num_classes} classes, but {kind} has {task.num_classes}: set '
      f'Classifier.num_classes to {kind}.num_classes'
    )
  if task.loss is not None and task.label_smoothing != 0.0:
    raise UserError(
      f'{kind}.label_smoothing is of the cross-entropy, which {kind}.loss replaces: leave one of them out'
    )


def class_sums(
  task: Classes, logits: jax.Array, labels: jax.Array, weights: jax.Array, train: bool
) -> Sums:
  """Returns loss, accuracy and, with more than five classes, top-5 accuracy as sums with the sums of the weights.

  Args:
    task: the task.
    logits: logits [batch, classes].
    labels: labels [batch].
    weights: weights [batch].
    train: whether labels are smoothed.
  """
  sums = classification_sums(logits, labels, weights, task.label_smoothing if train else 0.0)
  if task.loss is not None:
    losses = task.loss(logits.astype(jnp.float32), labels)
    sums['loss'] = ((losses * weights).sum(), weights.sum())
  if task.num_classes <= 5:
    return sums
  own = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
  hit = (rank(own, logits, jnp.arange(logits.shape[1]) != labels[:, None]) <= 5) * weights
  return sums | {'top5_accuracy': (hit.sum(), weights.sum())}
