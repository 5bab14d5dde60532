"""RandAugment (Cubuk et al. 2019, https://arxiv.org/abs/1909.13719): random image operations of one
magnitude."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from t2x.base.ranges import Natural, Range
from t2x.data.images import Augmentation, check_pixels

if TYPE_CHECKING:
  from PIL.Image import Image

__all__ = ['RandAugment']

# The largest magnitude, and the strength of each operation at it: the ranges of AutoAugment
# (https://arxiv.org/abs/1805.09501, table 6), oriented so that a larger magnitude changes more.
LARGEST = 10
DEGREES, SHEAR, TRANSLATION, ENHANCEMENT = 30.0, 0.3, 150 / 331, 0.9

# (image, fraction of the largest magnitude, -1 or 1, fill) -> image.
Operation = Callable[['Image', float, int, int], 'Image']


@functools.cache
def operations() -> tuple[Operation, ...]:
  """Returns the paper's fourteen operations on Pillow images."""
  from PIL import Image, ImageEnhance, ImageOps

  def enhance(kind: Callable) -> Operation:
    return lambda x, m, sign, fill: kind(x).enhance(1 + sign * m * ENHANCEMENT)

  def affine(image, shear_x, x, shear_y, y, fill):
    matrix = (1.0, shear_x, x, shear_y, 1.0, y)
    return image.transform(
      image.size, Image.Transform.AFFINE, matrix, fillcolor=_fill_colour(image, fill)
    )

  return (
    lambda x, m, sign, fill: x,
    lambda x, m, sign, fill: ImageOps.autocontrast(x),
    lambda x, m, sign, fill: ImageOps.equalize(x),
    lambda x, m, sign, fill: x.rotate(sign * m * DEGREES, fillcolor=_fill_colour(x, fill)),
    lambda x, m, sign, fill: ImageOps.solarize(x, 256 * (1 - m)),
    enhance(ImageEnhance.Color),
    lambda x, m, sign, fill: ImageOps.posterize(x, 8 - round(4 * m)),
    enhance(ImageEnhance.Contrast),
    enhance(ImageEnhance.Brightness),
    lambda x, m, sign, fill: Image.blend(smoothed(x), x, 1 + sign * m * ENHANCEMENT),
    lambda x, m, sign, fill: affine(x, sign * m * SHEAR, 0.0, 0.0, 0.0, fill),
    lambda x, m, sign, fill: affine(x, 0.0, 0.0, sign * m * SHEAR, 0.0, fill),
    lambda x, m, sign, fill: affine(x, 0.0, sign * m * TRANSLATION * x.width, 0.0, 0.0, fill),
    lambda x, m, sign, fill: affine(x, 0.0, 0.0, 0.0, sign * m * TRANSLATION * x.height, fill),
  )


def smoothed(image: 'Image') -> 'Image':
  """Returns the image that `PIL.ImageEnhance.Sharpness` blends with, in a fifth of the time.

  Equal to `PIL.ImageFilter.SMOOTH`: in each 3x3 window the mean with weight 5 in the centre and 1
  around it; border pixels stay.
  """
  from PIL import Image

  pixels = np.asarray(image)
  sums = pixels.astype(np.uint16)
  window = sums[:-2] + sums[1:-1] + sums[2:]
  window = window[:, :-2] + window[:, 1:-1] + window[:, 2:]
  window += 4 * sums[1:-1, 1:-1]
  # Rounded: the weights add up to 13, so there are no halves.
  window += 6
  window //= 13
  result = pixels.copy()
  result[1:-1, 1:-1] = window
  return Image.fromarray(result)


def _fill_colour(image: 'Image', fill: int) -> tuple[int, ...]:
  return (fill,) * len(image.getbands())


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandAugment(Augmentation):
  """Applies `num_ops` of the paper's fourteen operations in sequence, drawn anew for each image.

  The operations are identity, autocontrast, equalize, rotate, solarize, color, posterize, contrast,
  brightness, sharpness, and shear and translate along x and y, each as defined by Pillow. If an
  operation has two directions, the direction is drawn too. An image with three channels is RGB;
  otherwise each channel is a grey image.

  Attributes:
    num_ops: operations per image (N in the paper).
    magnitude: magnitude of all operations, from 0 to 10 (M in the paper).
    fill: value of pixels from outside of the image.
  """

  num_ops: Natural = 2
  magnitude: Annotated[float, Range(f'0 <= x <= {LARGEST}')] = 9.0
  fill: Annotated[int, Range('0 <= x <= 255')] = 128

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the row with the augmented `image`, uint8 [height, width, channels].

    A float image is converted from [0, 1].
    """
    from PIL import Image

    image = np.asarray(row['image'])
    check_pixels(image)
    if image.dtype != np.uint8:
      image = np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)
    if image.ndim == 2:
      image = image[..., None]
    split = [image] if image.shape[-1] == 3 else np.moveaxis(image, -1, 0)
    parts = [Image.fromarray(part) for part in split]
    for _ in range(self.num_ops):
      index, sign = rng.integers(len(operations())), 2 * int(rng.integers(2)) - 1
      operation = operations()[index]
      parts = [operation(part, self.magnitude / LARGEST, sign, self.fill) for part in parts]
    arrays = [np.asarray(part) for part in parts]
    return {**row, 'image': arrays[0] if image.shape[-1] == 3 else np.dstack(arrays)}
