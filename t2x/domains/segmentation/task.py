"""Semantic segmentation: the class of each pixel, and mean intersection over union."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Finite, Natural, Positive, Size
from t2x.data import Crop
from t2x.data.images import fix_statistics
from t2x.data.sources.subset import spread
from t2x.domains.segmentation.transforms import PrepareMask
from t2x.layers.vision.grids import resized
from t2x.models import Inputs, Output
from t2x.models.losses import classification_sums
from t2x.models.ranks import choice
from t2x.tasks.base import SOURCE_CLASSES, Task
from t2x.tasks.evaluators import Evaluation, TaskEvaluator
from t2x.tasks.output import TaskOutput

__all__ = ['MeanIoU', 'SemanticSegmentation']


@dataclasses.dataclass(frozen=True, kw_only=True)
class SemanticSegmentation(Task):
  """Predicts the class of each pixel. The loss is the mean cross-entropy over the pixels of the batch that have a
  class; the logits of the model are interpolated to the size of the mask.

  Attributes:
    image_shape: height, width and channels of the model's input.
    num_classes: number of classes.
    ignored: value of masks for pixels without a class, which no loss and no metric counts.
    flip: mirrors half of the training images, with their masks.
    mean: subtracted from the pixels, which are scaled to 0..1; a number, or a number per channel.
    std: divisor of the centred pixels; a number, or a number per channel.
    train_crop: part of a training image, and of its mask, that is resized to `image_shape`; None: all have that shape.
    eval_crop: the same in evaluation.
  """

  image_shape: tuple[Size, Size, Size]
  num_classes: Size
  ignored: Natural = 255
  flip: bool = False
  mean: Finite | Sequence[Finite] = 0.5
  std: Positive | Sequence[Positive] = 0.5
  train_crop: Crop | None = None
  eval_crop: Crop | None = None

  inputs: ClassVar[Inputs] = {'image': 'image'}
  outputs: ClassVar[str] = 'class logits of a grid'
  head: ClassVar[str] = 'PixelClassifier'
  unit: ClassVar[str] = 'examples'

  def __post_init__(self):
    if self.ignored < self.num_classes:
      raise UserError(
        f'SemanticSegmentation.ignored = {self.ignored} is one of its {self.num_classes} classes: choose another value'
      )
    fix_statistics(self, 'image_shape')

  class_names = SOURCE_CLASSES

  def transform(self, *, train):
    """Returns the transform that crops, resizes and normalises images and, in training, mirrors them."""
    height, width, _ = self.image_shape
    return PrepareMask(
      height=height,
      width=width,
      num_classes=self.num_classes,
      ignored=self.ignored,
      mean=self.mean,
      std=self.std,
      crop=self.train_crop if train else self.eval_crop,
      flip=self.flip and train,
    )

  def spec(self, batch_size):
    """Returns image: float32 [batch, height, width, channels]; mask: int32 [batch, height, width]; weight: [batch]."""
    return {
      'image': jax.ShapeDtypeStruct((batch_size, *self.image_shape), jnp.float32),
      'mask': jax.ShapeDtypeStruct((batch_size, *self.image_shape[:2]), jnp.int32),
      'weight': jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }

  def check_model(self, model):
    """Also raises UserError if the head has another number of classes."""
    super().check_model(model)
    if model.spec.num_classes != self.num_classes:
      raise UserError(
        f'the model has {model.spec.num_classes} classes, but SemanticSegmentation has {self.num_classes}: set '
        'Classifier.num_classes to SemanticSegmentation.num_classes'
      )

  def target_weights(self, batch):
    """Returns 1 for the pixels that have a class."""
    return (batch['mask'] != self.ignored) * batch['weight'][:, None, None]

  def sums(self, model, batch, key):
    """Returns loss and accuracy, the share of the pixels with a class whose class is right."""
    logits, out = self.logits(model, batch, key)
    weights = self.weighted_targets(batch)
    labels = jnp.where(batch['mask'] == self.ignored, 0, batch['mask'])
    return TaskOutput(classification_sums(logits, labels, weights), out.aux)

  def logits(
    self, model: Callable[..., Output], batch: Mapping[str, Array], key: Array | None
  ) -> tuple[Float[Array, 'batch height width classes'], Output]:
    """Returns the class logits of all pixels, and the output of the model."""
    out = model(batch['image'], key=key)
    height, width, _ = self.image_shape
    return resized(out.x, (height, width)), out

  def predictions(
    self, model: Callable[..., Output], batch: Mapping[str, Array]
  ) -> Int[Array, 'batch height width']:
    """Returns the class of all pixels; -1 where several are the likeliest, or a logit is NaN."""
    return choice(self.logits(model, batch, None)[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanIoU(TaskEvaluator):
  """Computes the intersection over union of each class, over the pixels of all images together, and its mean over the
  classes that a pixel has or is predicted to have. No class is predicted for a pixel of which several are the
  likeliest, or a logit is NaN.

  mean_iou_one_class is the mean if all pixels were predicted as the most frequent class. With names of classes,
  iou/NAME is that of each class; mean_accuracy is the mean share of the pixels of a class that are right.
  """

  kinds: ClassVar[tuple[type[Task], ...]] = (SemanticSegmentation,)

  def __call__(self, evaluated):
    """Returns the metrics, of images as `eval_crop` prepares them."""
    task, rows = evaluated.task, evaluated.rows(self._split(evaluated.task))
    indices = spread(min(self.num_examples or len(rows), len(rows)), len(rows))
    number = task.num_classes

    def counts(model, batch):
      labels = jnp.where(batch['mask'] == task.ignored, number, batch['mask'])
      # The last column is that of no class, -1.
      pairs = labels * (number + 1) + task.predictions(model, batch) % (number + 1)
      return jax.vmap(lambda one: jnp.bincount(one.ravel(), length=(number + 1) ** 2))(pairs)

    total = np.zeros((number + 1) ** 2, np.int64)
    for _, one in evaluated.predict([rows[i] for i in indices], counts):
      total += one
    metrics = iou_scores(total.reshape(-1, number + 1)[:number], task.class_names)
    return Evaluation({'examples': float(len(indices)), **metrics})


def iou_scores(
  counts: Int[np.ndarray, 'classes predicted'], names: Sequence[str] = ()
) -> dict[str, float]:
  """Returns the metrics of `MeanIoU`; NaN without pixels that have a class.

  Args:
    counts: number of pixels by class and predicted class; a further column is no class.
    names: names of the classes; empty: no metric per class.
  """
  hits, labels = counts.diagonal(), counts.sum(axis=1)
  predicted = counts.sum(axis=0)[: len(labels)]
  if not labels.sum():
    return {'mean_iou': float('nan')}
  union = labels + predicted - hits
  ious = hits / np.where(union, union, np.nan)
  metrics = {
    'mean_iou': float(np.nanmean(ious)),
    'mean_accuracy': float((hits[labels > 0] / labels[labels > 0]).mean()),
    'pixel_accuracy': float(hits.sum() / labels.sum()),
    'mean_iou_one_class': float(labels.max() / labels.sum() / np.count_nonzero(labels)),
  }
  per_class = zip(names, ious, union, strict=True) if names else ()
  return metrics | {f'iou/{name}': float(iou) for name, iou, size in per_class if size}
