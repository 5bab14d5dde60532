"""Image classification (ViT, https://arxiv.org/abs/2010.11929)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from t2x.data import Augmentation, Chain, PrepareImage, check_label, label_values
from t2x.errors import UserError
from t2x.layers import named_key
from t2x.models import Inputs, OutputKind
from t2x.models.losses import classification_sums
from t2x.ranges import Finite, Natural, Positive, Size, Text, TunableRate
from t2x.tasks.base import TaskOutput
from t2x.tasks.distillation import DistillableTask
from t2x.tasks.image_mixing import Mixing


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageClassification(DistillableTask):
  """Predicts the class of an image.

  Attributes:
    image_shape: height, width and channels of the source's images.
    num_classes: number of classes.
    label_smoothing: label smoothing as in `cross_entropy`, in training only.
    crop_padding: padding in pixels on each side before a random crop, in training only; 0: no crops.
    flip: mirrors half of the training images.
    mean: subtracted from the pixels, which are scaled to 0..1.
    std: divisor of the centred pixels.
    augmentation: augments training images before the other steps; None: no augmentation.
    mixing: mixes the images and the labels of a training batch; None: no mixing.
  """

  image_shape: tuple[Size, Size, Size]
  num_classes: Size
  label_smoothing: TunableRate = 0.0
  crop_padding: Natural = 0
  flip: bool = False
  mean: Finite = 0.5
  std: Positive = 0.5
  augmentation: Augmentation | None = None
  mixing: Mixing | None = None
  eval_split: Text = 'test'

  inputs: ClassVar[Inputs] = 'images'
  outputs: ClassVar[OutputKind] = 'class logits'
  head: ClassVar[str] = 'Classifier'
  unit: ClassVar[str] = 'examples'

  @property
  def one_segment(self):
    """True: an image is one row of patches."""
    return True

  def rows(self, split):
    """Returns the examples of the source."""
    self.check_split(split)
    return self.source.load(split)

  def check_rows(self, split, rows):
    """Also raises UserError for labels out of range, if the labels can be read without the images."""
    super().check_rows(split, rows)
    for label in sorted(label_values(rows) or (), key=repr):
      check_label(label, self.num_classes, f"the split '{split}' of {self.source}")

  def transform(self, *, train):
    """Returns the transform that normalises images and, in training, augments, crops and mirrors them."""
    prepare = PrepareImage(
      num_classes=self.num_classes,
      mean=self.mean,
      std=self.std,
      crop_padding=self.crop_padding if train else 0,
      flip=self.flip and train,
    )
    if self.augmentation is None or not train:
      return prepare
    return Chain((self.augmentation, prepare))

  def spec(self, batch_size):
    """Returns image: float32 [batch, height, width, channels]; label: int32 and weight: float32 [batch]."""
    return {
      'image': jax.ShapeDtypeStruct((batch_size, *self.image_shape), jnp.float32),
      'label': jax.ShapeDtypeStruct((batch_size,), jnp.int32),
      'weight': jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }

  def check_model(self, model):
    """Also raises UserError if the head has another number of classes."""
    super().check_model(model)
    if model.spec.num_classes != self.num_classes:
      raise UserError(
        f'the model has {model.spec.num_classes} classes, but ImageClassification has '
        f'{self.num_classes}: set Classifier.num_classes to ImageClassification.num_classes'
      )

  def target_weights(self, batch):
    """Returns the weight of each example."""
    return batch['weight']

  def predictions(self, model, batch, key):
    """Returns the logits of the classes."""
    out = model(batch['image'], key=key)
    return out.x, out

  def sums(self, model, batch, key, teacher=None):
    """Returns loss, accuracy (top-1) and top-5 accuracy; for mixed images the mean over both labels."""
    images, labels, weights = batch['image'], batch['label'], self.weighted_targets(batch)
    if key is None or self.mixing is None:
      logits, out = self.predictions(model, batch, key)
      sums = self._sums(logits, labels, weights, train=key is not None)
      return self.distilled(TaskOutput(sums, out.aux), logits, weights, teacher, batch)
    # 'task.mixing' is not the path of any module, so the key is independent of theirs.
    images, other, share = self.mixing(images, named_key(key, 'task.mixing'))
    mixed = {**batch, 'image': images}
    logits, out = self.predictions(model, mixed, key)
    own = self._sums(logits, labels, share * weights, train=True)
    others = self._sums(logits, labels[other], (1 - share) * weights, train=True)
    # The weights of the two labels add up to the weight of the example.
    sums = {name: (own[name][0] + others[name][0], weights.sum()) for name in own}
    return self.distilled(TaskOutput(sums, out.aux), logits, weights, teacher, mixed)

  def _sums(self, logits, labels, weights, train):
    smoothing = self.label_smoothing if train else 0.0
    sums = classification_sums(logits, labels, weights, smoothing)
    _, best = jax.lax.top_k(logits, min(5, self.num_classes))
    hit = (best == labels[:, None]).any(axis=-1) * weights
    return sums | {'top5_accuracy': (hit.sum(), weights.sum())}

  def count(self, batch):
    """Returns the number of examples that are not padding."""
    return int(np.count_nonzero(batch['weight']))
