"""Image classification (ViT, https://arxiv.org/abs/2010.11929)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from t2x.data import PrepareImage
from t2x.errors import UserError
from t2x.tasks.base import Task
from t2x.tasks.losses import classification_sums

__all__ = ['ImageClassification']


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageClassification(Task):
  """Images and labels.

  Attributes:
    image_shape: height, width and channels of the source's images.
    num_classes: number of labels.
    label_smoothing: as `cross_entropy` defines it, in training alone.
    crop_padding: pixels of padding around the image before a random crop; 0 leaves crops out.
    flip: mirrors half of the images.
    mean: subtracted from pixels scaled to 0..1.
    std: what the difference is divided by.
  """

  image_shape: tuple[int, int, int]
  num_classes: int
  label_smoothing: float = 0.0
  crop_padding: int = 0
  flip: bool = False
  mean: float = 0.5
  std: float = 0.5
  eval_split: str = 'test'

  unit: ClassVar[str] = 'examples'

  def rows(self, split, tokenizer):
    """The source's own examples."""
    self.check_split(split)
    return self.source.load(split)

  def transform(self, tokenizer, *, train):
    """Normalises; in training also crops and mirrors."""
    return PrepareImage(
      mean=self.mean,
      std=self.std,
      crop_padding=self.crop_padding if train else 0,
      flip=self.flip and train,
    )

  def spec(self, batch_size):
    """image float32 [batch, height, width, channels]; label int32 and weight float32 [batch]."""
    return {
      'image': jax.ShapeDtypeStruct((batch_size, *self.image_shape), jnp.float32),
      'label': jax.ShapeDtypeStruct((batch_size,), jnp.int32),
      'weight': jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }

  def check_model(self, model):
    """The head needs a logit for each class."""
    if getattr(model, 'num_classes', None) != self.num_classes:
      raise UserError(
        f'the model has {getattr(model, "num_classes", None)} classes, the task '
        f'{self.num_classes}: set Classifier.num_classes and ImageClassification.num_classes alike'
      )

  def sums(self, model, batch, key):
    """Loss, accuracy (top-1) and top-5 accuracy of the examples with weight 1."""
    out = model(batch['image'], key=key)
    labels, weights = batch['label'], batch['weight']
    smoothing = 0.0 if key is None else self.label_smoothing
    sums = classification_sums(out.x, labels, weights, smoothing)
    _, best = jax.lax.top_k(out.x, min(5, self.num_classes))
    hit = (best == labels[:, None]).any(axis=-1) * weights
    return sums | {'top5_accuracy': (hit.sum(), weights.sum())}, out.aux

  def count(self, batch):
    """Examples that are not padding."""
    return int(np.count_nonzero(batch['weight']))
