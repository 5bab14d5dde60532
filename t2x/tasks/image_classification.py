"""Image classification (ViT, https://arxiv.org/abs/2010.11929)."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import Finite, Natural, Positive, Size
from t2x.data import (
  Augmentation,
  Chain,
  Crop,
  CropAndResize,
  PrepareImage,
  channel_statistics,
)
from t2x.data.batches import Repeated, Transform
from t2x.data.images import UNLABELLED, fix_statistics
from t2x.data.sources.image_folder import read_image
from t2x.data.sources.rewriting import resized_as
from t2x.data.sources.subset import spread
from t2x.layers import named_key
from t2x.models import FlexibleModel, Inputs
from t2x.tasks.classification import Classification, class_sums
from t2x.tasks.image_mixing import Mixing
from t2x.tasks.output import TaskOutput

__all__ = ['ImageClassification']


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageClassification(Classification):
  """Predicts the class of an image. With `distillation`, training images without a label learn from the teacher only.

  Attributes:
    image_shape: height, width and channels of the model's input.
    crop_padding: padding in pixels on each side before a random crop, in training only; 0: no crops.
    flip: mirrors half of the training images.
    mean: subtracted from the pixels, which are scaled to 0..1; a number, or a number per channel.
      `t2x data inspect` prints the statistics of the training images.
    std: divisor of the centred pixels; a number, or a number per channel.
    train_crop: part of a training image that is resized to `image_shape`; None: all images have that shape.
    eval_crop: part of an image that is resized to `image_shape` in evaluation; None: all images have that shape.
    augmentation: augments training images before padded crops, flips and normalisation; one part or a list of parts,
      which are applied in order; None: no augmentation.
    normalised_augmentation: augments the normalised training images, in order.
    repeats: number of times that an image is in a training batch, with different draws of crops, flips and
      augmentations (repeated augmentation, https://arxiv.org/abs/1902.05509).
    mixing: mixes the images and the labels of a training batch; None: no mixing.
    patch_sizes: patch sizes of a flexible model (`FlexibleVisionTransformer`) in training: each step draws one for all
      of its images. The step is one program with a branch for each. Empty: the size that the model has.
  """

  image_shape: tuple[Size, Size, Size]
  crop_padding: Natural = 0
  flip: bool = False
  mean: Finite | Sequence[Finite] = 0.5
  std: Positive | Sequence[Positive] = 0.5
  train_crop: Crop | None = None
  eval_crop: Crop | None = None
  augmentation: Augmentation | Sequence[Augmentation] | None = None
  normalised_augmentation: Sequence[Augmentation] = ()
  repeats: Size = 1
  mixing: Mixing | None = None
  patch_sizes: Sequence[Size] = ()

  inputs: ClassVar[Inputs] = {'image': 'image'}
  answers_prompts: ClassVar[bool] = True

  def __post_init__(self):
    fix_statistics(self, 'image_shape')

    for size in self.patch_sizes:
      if any(side % size for side in self.image_shape[:2]):
        raise UserError(
          f'ImageClassification.patch_sizes has {size}, which does not divide the sides of images of '
          f'{self.image_shape}'
        )

  def check_model(self, model):
    """Also raises UserError if `patch_sizes` is set and the model has one patch size."""
    super().check_model(model)
    if self.patch_sizes and not isinstance(model, FlexibleModel):
      raise UserError(
        f'ImageClassification.patch_sizes is set, but Experiment.model = @{type(model).__name__} has one patch size: '
        'use @FlexibleVisionTransformer, or remove patch_sizes'
      )

  def transform(self, *, train):
    """Returns the transform that crops, resizes and normalises images and, in training, augments and mirrors them."""
    prepare = PrepareImage(
      num_classes=self.num_classes,
      mean=self.mean,
      std=self.std,
      crop_padding=self.crop_padding if train else 0,
      flip=self.flip and train,
      allow_unlabelled=train and self.distillation is not None,
    )
    crop, (height, width, _) = self.train_crop if train else self.eval_crop, self.image_shape
    steps: list[Transform] = [] if crop is None else [CropAndResize(crop, height, width)]
    if train and self.augmentation is not None:
      chosen = self.augmentation
      steps += [chosen] if isinstance(chosen, Augmentation) else chosen
    after = self.normalised_augmentation if train else ()
    return Chain((*steps, prepare, *after)) if steps or after else prepare

  def read(self, path):
    """Returns an image file in the size of the images of the source."""
    return resized_as(self.source, read_image(path, self.image_shape[-1]))

  def order(self, rows, batch_size, seed):
    """Returns the order with each image `repeats` times in its batch.

    Raises:
      UserError: `repeats` does not divide the size of a batch, or nothing is drawn for an image.
    """
    if self.repeats == 1:
      return None
    random = self.train_crop or self.augmentation or self.normalised_augmentation
    if batch_size % self.repeats or not (random or self.crop_padding or self.flip):
      raise UserError(
        f'ImageClassification.repeats = {self.repeats} must divide the {batch_size} images of a '
        'batch, and needs random '
        'crops, flips or augmentations, so that the copies of an image differ: change or remove it'
      )
    return Repeated(len(rows), seed, self.repeats)

  def statistics(self, num_examples: int = 1000) -> str:
    """Returns the `mean` and `std` of the channels of training images, as settings.

    Args:
      num_examples: number of images to read, evenly spaced.
    """
    rows = self.rows(self.train_split)
    indices = spread(min(num_examples, len(rows)), len(rows))
    mean, std = channel_statistics(rows[i]['image'] for i in indices)
    settings = [
      f'{name} = {tuple(round(float(value), 4) for value in values)}'
      for name, values in (('mean', mean), ('std', std))
    ]
    return f'channels of {len(indices):,} training images: {", ".join(settings)}'

  def spec(self, batch_size):
    """Returns image: float32 [batch, height, width, channels]; label: int32 and weight: float32 [batch]."""
    return {
      'image': jax.ShapeDtypeStruct((batch_size, *self.image_shape), jnp.float32),
      **super().spec(batch_size),
    }

  def batch(self, batch, key):
    """Mixes the images; adds the label of each partner image, and the share of the own label. Draws the patch size."""
    if self.patch_sizes:
      index = jax.random.randint(named_key(key, 'task.patch_size'), (1,), 0, len(self.patch_sizes))
      batch = {**batch, 'patch_size': jnp.broadcast_to(index, batch['label'].shape)}
    if self.mixing is None:
      return batch
    # 'task.mixing' is not the path of any module, so the key is independent of theirs.
    images, other, share = self.mixing(batch['image'], named_key(key, 'task.mixing'))
    labels = batch['label']
    return {
      **batch,
      'image': images,
      'other_label': labels[other],
      'share': jnp.broadcast_to(share, labels.shape),
    }

  def predictions(self, model, batch, key):
    """Returns the logits and the output of the model, in training with the patch size that was drawn."""
    if key is None or not self.patch_sizes:
      return super().predictions(model, batch, key)

    def at(size):
      return lambda images, key: model.at_patch_size(size)(images, key=key)

    branches = [at(size) for size in self.patch_sizes]
    out = jax.lax.switch(batch['patch_size'][0], branches, batch['image'], key)
    return out.x, out

  def sums(self, model, batch, key, teacher=None):
    """Returns loss, accuracy and, above five classes, top-5 accuracy; for mixed images the mean over both labels."""
    if key is None or self.mixing is None:
      return super().sums(model, batch, key, teacher)
    logits, out = self.predictions(model, batch, key)
    of_labels, of_teacher = self.heads(logits, out, key)
    rows = self.teacher_weights(batch)
    own, others = (
      class_sums(self, of_labels, labels, rows * weights, train=True)
      for labels, weights in self._labels(batch)
    )
    total = self.weighted_targets(batch).sum()
    sums = {name: (own[name][0] + others[name][0], total) for name in own}
    return self.distilled(TaskOutput(sums, out.aux), of_teacher, out.x, teacher, batch)

  def _labels(self, batch):
    """Returns the labels of each image and their weights, which are 0 without a label: of a mixed image two."""
    if 'share' not in batch:
      return [(batch['label'], batch['label'] != UNLABELLED)]
    pairs = (batch['label'], batch['share']), (batch['other_label'], 1 - batch['share'])
    return [(labels, share * (labels != UNLABELLED)) for labels, share in pairs]

  def target_weights(self, batch):
    """Returns the weights of the labels; 0 for images without one."""
    return batch['weight'] * sum(weights for _, weights in self._labels(batch))

  def teacher_weights(self, batch):
    """Returns the weights of all images."""
    return batch['weight'] * batch.get('loss_weight', 1.0)
