"""Bicubic fits of images of any size to the input of a pretrained model, as in its published preprocessing."""

import abc
import dataclasses

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Size

__all__ = ['ImageFit', 'ShorterSide', 'WholeImage']


class ImageFit(abc.ABC):
  """Fits an image to the input of a model."""

  @abc.abstractmethod
  def __call__(self, image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Returns uint8 [height, width, channels] of an image uint8 [old height, old width, channels]."""


@dataclasses.dataclass(frozen=True)
class WholeImage(ImageFit):
  """Resizes the whole image, whatever its proportions (SigLIP)."""

  def __call__(self, image, height, width):
    return _bicubic(image, height, width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShorterSide(ImageFit):
  """Resizes the shorter side to `side` pixels, then cuts out the centre (CLIP).

  Attributes:
    side: pixels of the shorter side, at least those of the model's input.
  """

  side: Size

  def __call__(self, image, height, width):
    shorter = min(image.shape[:2])
    # The longer side is rounded down, as in the published preprocessing.
    rows, columns = (int(self.side * n / shorter) for n in image.shape[:2])
    top, left = (rows - height) // 2, (columns - width) // 2
    if min(top, left) < 0:
      raise UserError(
        f'ShorterSide.side = {self.side} is below the input of {height} x {width} pixels: raise it'
      )
    return _bicubic(image, rows, columns)[top : top + height, left : left + width]


def _bicubic(image: np.ndarray, height: int, width: int) -> np.ndarray:
  from PIL import Image

  if image.dtype != np.uint8 or image.shape[-1] not in (1, 3):
    raise UserError(
      f'an image is {image.dtype} with {image.shape[-1]} channels: only uint8 with 1 or 3 channels can be resized'
    )
  pillow = Image.fromarray(image if image.shape[-1] == 3 else image[..., 0])
  resized = np.asarray(pillow.resize((width, height), Image.Resampling.BICUBIC))
  return resized if image.shape[-1] == 3 else resized[..., None]
