"""Base class of tasks that predict the class of an example with a vector of logits."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Size, TunableRate
from t2x.data import check_label, label_values
from t2x.data.sources.base import class_names
from t2x.models.losses import classification_sums
from t2x.models.ranks import choice, rank
from t2x.parallel import runs_model
from t2x.tasks.base import OF_EXAMPLES, Task
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

  @property
  def class_names(self):
    """The names of the source's classes."""
    return class_names(self.source)

  def check_rows(self, split, rows):
    """Also raises UserError for labels out of range, if the labels can be read without the inputs."""
    super().check_rows(split, rows)
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
    if model.spec.num_classes != self.num_classes:
      kind = type(self).__name__
      raise UserError(
        f'the model has {model.spec.num_classes} classes, but {kind} has {self.num_classes}: set '
        f'Classifier.num_classes to {kind}.num_classes'
      )
    if self.loss is not None and self.label_smoothing != 0.0:
      kind = type(self).__name__
      raise UserError(
        f'{kind}.label_smoothing is of the cross-entropy, which {kind}.loss replaces: leave one of them out'
      )

  def target_weights(self, batch):
    return batch['weight']

  def predictions(self, model, batch, key):
    (name,) = self.inputs
    out = model(batch[name], key=key)
    return out.x, out

  def sums(self, model, batch, key, teacher=None):
    """Returns loss, accuracy and, with more than five classes, top-5 accuracy."""
    labels, weights = batch['label'], self.weighted_targets(batch)
    logits, out = self.predictions(model, batch, key)
    heads = self.heads(logits, out, key)
    sums = self.class_sums(heads[0], labels, weights, train=key is not None)
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

  def class_sums(self, logits, labels, weights, train):
    """Returns the metrics of logits [batch, classes] as sums over the batch, with the sums of the weights."""
    smoothing = self.label_smoothing if train else 0.0
    sums = classification_sums(logits, labels, weights, smoothing)
    if self.loss is not None:
      losses = self.loss(logits.astype(jnp.float32), labels)
      sums['loss'] = ((losses * weights).sum(), weights.sum())
    if self.num_classes <= 5:
      return sums
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    hit = (rank(own, logits, jnp.arange(logits.shape[1]) != labels[:, None]) <= 5) * weights
    return sums | {'top5_accuracy': (hit.sum(), weights.sum())}
