"""RandAugment (Cubuk et al. 2019, https://arxiv.org/abs/1909.13719): a few operations drawn for each
image, all of one magnitude."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np

from t2x.data import image_operations as operations
from t2x.data.images import Augmentation
from t2x.ranges import Natural, Range

__all__ = ['RandAugment']

# The largest magnitude, and what each operation does at it: the ranges of AutoAugment
# (https://arxiv.org/abs/1805.09501, table 6), turned so that more always changes more.
LARGEST = 10
DEGREES, SHEAR, TRANSLATION, ENHANCEMENT = 30.0, 0.3, 150 / 331, 0.9

# (image, part of the largest magnitude, -1 or 1, fill) -> image. The paper's fourteen.
Operation = Callable[[np.ndarray, float, int, int], np.ndarray]
OPERATIONS: tuple[Operation, ...] = (
  lambda x, m, sign, fill: x,
  lambda x, m, sign, fill: operations.autocontrast(x),
  lambda x, m, sign, fill: operations.equalize(x),
  lambda x, m, sign, fill: operations.rotate(x, sign * m * DEGREES, fill),
  lambda x, m, sign, fill: operations.solarize(x, 256.0 * (1 - m)),
  lambda x, m, sign, fill: operations.color(x, 1 + sign * m * ENHANCEMENT),
  lambda x, m, sign, fill: operations.posterize(x, 8 - round(4 * m)),
  lambda x, m, sign, fill: operations.contrast(x, 1 + sign * m * ENHANCEMENT),
  lambda x, m, sign, fill: operations.brightness(x, 1 + sign * m * ENHANCEMENT),
  lambda x, m, sign, fill: operations.sharpness(x, 1 + sign * m * ENHANCEMENT),
  lambda x, m, sign, fill: _moved(x, sign * m * SHEAR, 0.0, 0.0, 0.0, fill),
  lambda x, m, sign, fill: _moved(x, 0.0, 0.0, sign * m * SHEAR, 0.0, fill),
  lambda x, m, sign, fill: _moved(x, 0.0, sign * m * TRANSLATION * x.shape[1], 0.0, 0.0, fill),
  lambda x, m, sign, fill: _moved(x, 0.0, 0.0, 0.0, sign * m * TRANSLATION * x.shape[0], fill),
)


def _moved(
  image: np.ndarray, shear_x: float, x: float, shear_y: float, y: float, fill: int
) -> np.ndarray:
  return operations.affine(image, (1.0, shear_x, x, shear_y, 1.0, y), fill)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandAugment(Augmentation):
  """`num_ops` of the paper's fourteen operations, one after the other, drawn anew for each image.

  They are: none, autocontrast, equalize, rotate, solarize, color, posterize, contrast, brightness,
  sharpness, and shear and translate along x and y. Where one goes two ways, the way is drawn too.

  Attributes:
    num_ops: operations an image (the paper's N).
    magnitude: of all of them, from 0 to 10 (the paper's M).
    fill: value of the pixels that come in from outside.
  """

  num_ops: Natural = 2
  magnitude: Annotated[float, Range(f'0 <= x <= {LARGEST}')] = 9.0
  fill: Annotated[int, Range('0 <= x <= 255')] = 128

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The row with another `image`: uint8 (from float too) [height, width, channels]."""
    image = np.asarray(row['image'])
    if image.dtype != np.uint8:
      image = np.rint(255 * image).astype(np.uint8)
    if image.ndim == 2:
      image = image[..., None]
    strength = self.magnitude / LARGEST
    for _ in range(self.num_ops):
      index, sign = rng.integers(len(OPERATIONS)), 2 * int(rng.integers(2)) - 1
      image = OPERATIONS[index](image, strength, sign, self.fill)
    return {**row, 'image': image}
