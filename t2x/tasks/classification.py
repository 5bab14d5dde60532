"""Base class of tasks that predict the class of an example with a vector of logits."""

import abc
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import Size, TunableRate
from t2x.data import check_label, label_values
from t2x.data.sources.base import class_names
from t2x.models.losses import classification_sums
from t2x.models.ranks import rank
from t2x.tasks.base import TaskOutput
from t2x.tasks.distillation import DistillableTask
from t2x.tasks.losses import ClassLoss

__all__ = ['Classification']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(DistillableTask):
  """Predicts the class of an example. Subclasses define its one input.

  Attributes:
    num_classes: number of classes.
    label_smoothing: label smoothing as in `cross_entropy`, in training only.
    loss: loss of the scores that the model computes. None: cross-entropy.
  """

  num_classes: Size
  label_smoothing: TunableRate = 0.0
  loss: ClassLoss | None = None

  outputs: ClassVar[str] = 'class logits'
  head: ClassVar[str] = 'Classifier'
  unit: ClassVar[str] = 'examples'
  example_metrics: ClassVar[frozenset[str]] = frozenset({'loss', 'accuracy', 'top5_accuracy'})

  @property
  def one_segment(self):
    """True: an example is one row of tokens."""
    return True

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
    return self.distilled(TaskOutput(sums, out.aux), heads[1], out.x, teacher, batch)

  def heads(self, logits, out, key):
    """Returns the logits that learn from labels and those that learn from a teacher: of a model with two heads different
    ones in training, and their mean in evaluation.

    Raises:
      UserError: in training, if a head would learn nothing.
    """
    if key is None or not out.heads:
      return logits, logits
    if self.distillation is None:
      raise UserError(
        f'the model has a head that learns from a teacher, but {type(self).__name__}.distillation is not set: set it to '
        '@HardDistillation(), or use @VisionTransformer'
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
