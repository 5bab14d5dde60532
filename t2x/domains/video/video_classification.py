"""Classification of videos (TimeSformer, https://arxiv.org/abs/2102.05095)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from t2x.base.ranges import Finite, Natural, Positive, Size
from t2x.data import Chain, Crop, CropAndResize, PrepareImage
from t2x.data.batches import Transform
from t2x.data.images import fix_statistics
from t2x.domains.video.frames import AsImage, AsVideo
from t2x.models import Inputs
from t2x.tasks.classification import Classification

__all__ = ['VideoClassification']


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoClassification(Classification):
  """Predicts the class of a video. All of its frames are cropped and mirrored alike.

  Attributes:
    video_shape: frames, height, width and channels of the model's input.
    frame_step: distance between two frames of the input in frames of the video. Inputs start at a random frame in
      training, and are in the middle of the video in evaluation.
    crop_padding: padding in pixels on each side before a random crop, in training only; 0: no crops.
    flip: mirrors half of the training videos.
    mean: subtracted from the pixels, which are scaled to 0..1; a number, or a number per channel.
    std: divisor of the centred pixels; a number, or a number per channel.
    train_crop: part of the frames of a training video that is resized to `video_shape`; None: all
      videos have that shape.
    eval_crop: the same in evaluation.
  """

  video_shape: tuple[Size, Size, Size, Size]
  frame_step: Size = 1
  crop_padding: Natural = 0
  flip: bool = False
  mean: Finite | Sequence[Finite] = 0.5
  std: Positive | Sequence[Positive] = 0.5
  train_crop: Crop | None = None
  eval_crop: Crop | None = None

  inputs: ClassVar[Inputs] = {'video': 'video'}

  def __post_init__(self):
    fix_statistics(self, 'video_shape')

  def transform(self, *, train):
    """Returns the transform that selects frames, crops, resizes and normalises them and, in training, mirrors them."""
    frames, height, width, _ = self.video_shape
    crop = self.train_crop if train else self.eval_crop
    resized: list[Transform] = [] if crop is None else [CropAndResize(crop, height, width)]
    prepare = PrepareImage(
      num_classes=self.num_classes,
      mean=_of_frames(self.mean, frames),
      std=_of_frames(self.std, frames),
      crop_padding=self.crop_padding if train else 0,
      flip=self.flip and train,
    )
    chosen = AsImage(frames, self.frame_step, is_random=train)
    return Chain((chosen, *resized, prepare, AsVideo(self.video_shape)))

  def spec(self, batch_size):
    """Returns video: float32 [batch, frames, height, width, channels]; label: int32 and weight: float32 [batch]."""
    shape = batch_size, *self.video_shape
    return {'video': jax.ShapeDtypeStruct(shape, jnp.float32), **super().spec(batch_size)}


def _of_frames(values: object, number: int) -> Any:
  """Returns one value, or the values of the channels of all frames."""
  return values * number if isinstance(values, tuple) else values
