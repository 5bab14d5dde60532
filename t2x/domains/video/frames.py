"""Preparation of videos, whose frames are cropped, mirrored and normalised alike."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2x.base.errors import UserError

__all__: list[str] = []


@dataclasses.dataclass(frozen=True)
class AsImage:
  """Selects frames of a video and makes them the channels of an image, which transforms of images then read.

  Attributes:
    num_frames: number of frames.
    step: distance between two of them.
    is_random: whether the first one is random; otherwise they are in the middle of the video.
  """

  num_frames: int
  step: int = 1
  is_random: bool = False

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the row with `image` [height, width, frames * channels] instead of `video`.

    Args:
      row: `video` uint8, or float from 0 to 1, [frames, height, width, channels], or a list of frames.
      rng: draws the first frame.

    Raises:
      UserError: the video has another number of dimensions, or too few frames.
    """
    video = row['video']
    length = (self.num_frames - 1) * self.step + 1
    spare = len(video) - length
    start = int(rng.integers(spare + 1)) if self.is_random and spare > 0 else spare // 2
    frames = np.asarray(video[start : start + length : self.step] if spare >= 0 else [])
    if frames.ndim != 4:
      shape = (len(video), *np.shape(video[0])) if len(video) else (0,)
      raise UserError(
        f'a video of shape {shape}: must have frames, height, width and channels, and at least {length} frames; '
        'change VideoClassification.video_shape or frame_step'
      )
    image = np.moveaxis(frames, 0, 2)
    others = {name: value for name, value in row.items() if name != 'video'}
    return others | {'image': image.reshape(*image.shape[:2], -1)}


@dataclasses.dataclass(frozen=True)
class AsVideo:
  """Makes the channels of an image the frames of a video: the inverse of `AsImage`.

  Attributes:
    shape: frames, height, width and channels of the model's input.
  """

  shape: tuple[int, int, int, int]

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the row with `video` [frames, height, width, channels] instead of `image`.

    Raises:
      UserError: the image has another height, width or number of channels.
    """
    frames, height, width, channels = self.shape
    image = row['image']
    if image.shape != (height, width, frames * channels):
      found = frames, *image.shape[:2], image.shape[2] / frames
      raise UserError(
        f'a video of frames, height, width and channels {found}, but '
        f'VideoClassification.video_shape = {self.shape}: set '
        'train_crop and eval_crop, which resize videos, or change video_shape'
      )
    video = np.moveaxis(image.reshape(height, width, frames, channels), 2, 0)
    others = {name: value for name, value in row.items() if name != 'image'}
    return others | {'video': np.ascontiguousarray(video)}
