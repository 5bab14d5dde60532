"""Detection of objects as the prediction of a set of boxes (DETR, https://arxiv.org/abs/2005.12872)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Finite, Fraction, NonNegative, Positive, Size
from t2x.data import Crop
from t2x.data.images import fix_statistics
from t2x.domains.detection.boxes import least_cost, overlaps
from t2x.domains.detection.transforms import PrepareBoxes
from t2x.layers.constraints import constrain
from t2x.models import Inputs
from t2x.models.losses import cross_entropy
from t2x.models.ranks import choice
from t2x.tasks.base import SOURCE_CLASSES, Task
from t2x.tasks.output import TaskOutput

__all__ = ['Detection']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detection(Task):
  """Predicts the boxes and classes of the objects in an image.

  Each layer of the model that learns predicts `num_queries` boxes. Objects are matched with predictions at the least
  total of -p(class) + `l1` |b - b'| - `giou` GIoU(b, b'), without gradient. The loss is the sum over layers of the
  cross-entropy of the class of each query, in which queries without an object have the weight `no_object`, divided by
  the weights of the batch, and of `l1` times the distance plus `giou` times 1 - GIoU of matched boxes, divided by the
  number of objects of the batch.

  Metrics of the last layer: loss (classes), boxes (distance and GIoU), accuracy and iou of the queries matched with an
  object. `AveragePrecision` computes the usual metric.

  Attributes:
    image_shape: height, width and channels of the model's input, to which images are resized.
    num_classes: number of classes of objects.
    num_queries: number of boxes that the model predicts, and maximum number of objects of an image.
    flip: mirrors half of the training images, with their boxes.
    train_crop: part of a training image that is resized, with the boxes in it; None: all of it.
    mean: subtracted from the pixels, which are scaled to 0..1; a number, or a number per channel.
    std: divisor of the centred pixels; a number, or a number per channel.
    l1: factor of the sum of the differences of centre, width and height.
    giou: factor of the generalised intersection over union.
    no_object: weight of the class of a query without an object.
  """

  image_shape: tuple[Size, Size, Size]
  num_classes: Size
  num_queries: Size
  flip: bool = False
  train_crop: Crop | None = None
  mean: Finite | Sequence[Finite] = 0.5
  std: Positive | Sequence[Positive] = 0.5
  l1: NonNegative = 5.0
  giou: NonNegative = 2.0
  no_object: Fraction = 0.1

  inputs: ClassVar[Inputs] = {'image': 'image'}
  outputs: ClassVar[str] = 'boxes'
  head: ClassVar[str] = 'YOLOS'
  unit: ClassVar[str] = 'examples'

  def __post_init__(self):
    fix_statistics(self, 'image_shape')

  class_names = SOURCE_CLASSES

  def transform(self, *, train):
    """Returns the transform that prepares images and boxes; in training it crops and mirrors them."""
    return PrepareBoxes(
      height=self.image_shape[0],
      width=self.image_shape[1],
      num_classes=self.num_classes,
      num_boxes=self.num_queries,
      crop=self.train_crop if train else None,
      flip=self.flip and train,
      mean=self.mean,
      std=self.std,
    )

  def spec(self, batch_size):
    """Returns image: float32 [batch, height, width, channels]; boxes: float32 [batch, queries, 4], centre, width and
    height as shares of the image; label: int32 [batch, queries], num_classes for padding; weight: float32 [batch]."""
    shapes = {
      'image': (self.image_shape, jnp.float32),
      'boxes': ((self.num_queries, 4), jnp.float32),
      'label': ((self.num_queries,), jnp.int32),
      'weight': ((), jnp.float32),
    }
    return {
      name: jax.ShapeDtypeStruct((batch_size, *shape), dtype)
      for name, (shape, dtype) in shapes.items()
    }

  def check_model(self, model):
    """Also raises UserError if the model has another number of classes or queries."""
    super().check_model(model)
    image = jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)
    predicted = jax.eval_shape(lambda model, image: model(image).x, model, image).shape[1:]
    if predicted != (self.num_queries, self.num_classes + 1):
      raise UserError(
        f'the model predicts {predicted[0]} boxes of {predicted[1] - 1} classes, but Detection.num_queries = '
        f'{self.num_queries} and num_classes = {self.num_classes}: make them equal'
      )

  def target_weights(self, batch):
    """Returns the weight of the class of each query, [batch, queries], in the order of the objects."""
    weights = jnp.where(batch['label'] == self.num_classes, self.no_object, 1.0)
    return weights * batch['weight'][:, None]

  def _objects(self, batch: Mapping[str, Array]) -> Float[Array, 'batch queries']:
    """Returns the weight of the box of each object; 0 for padding."""
    rows = batch['weight'] * batch.get('loss_weight', 1.0)
    return (batch['label'] != self.num_classes) * rows[:, None]

  def weights(self, batch):
    return super().weights(batch) | {'boxes': jnp.maximum(self._objects(batch).sum(), 1.0)}

  def matches(
    self, heads: Mapping[str, Array], batch: Mapping[str, Any]
  ) -> Int[Array, 'batch layers queries']:
    """Returns the index of the object, or of the padding, that each query of each layer is matched with."""
    labels, boxes = batch['label'][:, None], batch['boxes'][:, None, None]
    predicted = heads['boxes'].astype(jnp.float32)[:, :, :, None]
    probabilities = jax.nn.softmax(heads['classes'].astype(jnp.float32), axis=-1)
    own = jnp.take_along_axis(probabilities, labels[:, :, None], axis=-1)
    distance = jnp.abs(predicted - boxes).sum(axis=-1)
    cost = self.l1 * distance - own - self.giou * overlaps(predicted, boxes)[1]
    present = jnp.broadcast_to(labels != self.num_classes, cost.shape[:2] + labels.shape[2:])
    # The host matches all rows of a batch at once.
    return least_cost(constrain(cost, *[None] * 4), constrain(present, *[None] * 3))

  def sums(self, model, batch, key):
    """Returns the losses of classes and boxes, and the metrics of the last layer."""
    out = model(batch['image'], key=key)
    logits, boxes = (out.heads[name].astype(jnp.float32) for name in ('classes', 'boxes'))
    order = self.matches(out.heads, batch)

    def of_queries(values):
      return jnp.take_along_axis(values[:, None], order, axis=2)

    labels, weights = of_queries(batch['label']), of_queries(self.weighted_targets(batch))
    present = of_queries(self._objects(batch))
    targets = jnp.take_along_axis(batch['boxes'][:, None], order[..., None], axis=2)
    iou, giou = overlaps(boxes, targets)
    distance = jnp.abs(boxes - targets).sum(axis=-1)
    of_classes = (cross_entropy(logits, labels) * weights).sum()
    # Padding has no union with anything.
    lost = jnp.where(present > 0, self.l1 * distance + self.giou * (1 - giou), 0)
    of_boxes, last = (lost * present).sum(), present[:, -1]
    total, objects = weights[:, -1].sum(), last.sum()
    right = choice(logits[:, -1]) == labels[:, -1]
    sums = {
      'loss': (of_classes, total),
      'boxes': (of_boxes, objects),
      'accuracy': ((right * last).sum(), objects),
      'iou': (jnp.where(last > 0, iou[:, -1] * last, 0).sum(), objects),
    }
    return TaskOutput(sums, out.aux, {'boxes': of_boxes})
