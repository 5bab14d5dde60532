"""Random erasing of a rectangle of an image (Zhong et al. 2017, https://arxiv.org/abs/1708.04896)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Fraction, Range
from t2x.data.images import Augmentation

__all__ = ['RandomErasing']

ATTEMPTS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomErasing(Augmentation):
  """Fills a random rectangle of a normalised image with noise from N(0, 1), as timm with `mode='pixel'` does.

  Attributes:
    rate: fraction of the images that are changed.
    min_area: smallest area of the rectangle, as a fraction of the image's.
    max_area: largest area.
    min_aspect: smallest ratio of height and width; the largest is its inverse.
  """

  rate: Fraction = 0.25
  min_area: Fraction = 0.02
  max_area: Fraction = 1 / 3
  min_aspect: Annotated[float, Range('0 < x <= 1')] = 0.3

  def __post_init__(self):
    if self.min_area > self.max_area:
      raise UserError(
        f'RandomErasing.min_area = {self.min_area} is above max_area = {self.max_area}'
      )

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> Mapping[str, Any]:
    """Returns the row with the changed `image`, float32 [height, width, channels].

    Raises:
      UserError: the image is not normalised.
    """
    image = row['image']
    if image.dtype != np.float32:
      raise UserError(
        f'RandomErasing got an image of type {image.dtype}, but replaces pixels of normalised images: bind it as '
        'ImageClassification.normalised_augmentation'
      )
    if rng.random() > self.rate:
      return row
    height, width, channels = image.shape
    for _ in range(ATTEMPTS):
      area = rng.uniform(self.min_area, self.max_area) * height * width
      aspect = math.exp(rng.uniform(math.log(self.min_aspect), -math.log(self.min_aspect)))
      h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
      if h < height and w < width:
        top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
        image = image.copy()
        image[top : top + h, left : left + w] = rng.standard_normal((h, w, channels))
        break
    return {**row, 'image': image}
