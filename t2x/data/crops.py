"""Crops of images of any size, and antialiased resizing with Pillow."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Range

__all__ = ['CentralCrop', 'Crop', 'CropAndResize', 'RandomResizedCrop']

Share = Annotated[float, Range('0 < x <= 1')]


class Box(NamedTuple):
  """A part of an image; edges in pixels, which need not be whole numbers."""

  left: float
  top: float
  right: float
  bottom: float


def resize(image: np.ndarray, height: int, width: int, box: Box | None = None) -> np.ndarray:
  """Resizes a box of an image [old height, old width, channels] bilinearly.

  When it reduces an image, the filter grows with the factor, so that no pixel is ignored
  (antialiasing). Pixels beyond the border are the border's. Bytes are rounded after each of the two
  dimensions; to round once, resize float32.

  Args:
    image: uint8 or float32.
    height: new height in pixels.
    width: new width in pixels.
    box: part of the image; None: all of it.

  Returns:
    [height, width, channels] of the same dtype.
  """
  from PIL import Image

  def resized(part: np.ndarray) -> np.ndarray:
    pillow = Image.fromarray(part)
    return np.asarray(pillow.resize((width, height), Image.Resampling.BILINEAR, box=box))

  # Pillow multiplies the channels of four by the last one, which it takes for opacity.
  if image.dtype == np.uint8 and image.shape[-1] == 3:
    return resized(image)
  return np.dstack([resized(channel) for channel in np.moveaxis(image, -1, 0)])


class Crop(abc.ABC):
  """Selects the part of an image that is resized to the input of the model."""

  @abc.abstractmethod
  def box(
    self, height: int, width: int, new_height: int, new_width: int, rng: np.random.Generator
  ) -> Box:
    """Returns the part of an image of height x width that becomes new_height x new_width pixels."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentralCrop(Crop):
  """The largest part in the centre with the proportions of the model's input, times `fraction`.

  Attributes:
    fraction: width of the part over the width of the largest part. 0.875 is usual in evaluation
      (224 of 256 pixels); 1.0 cuts as little as possible.
  """

  fraction: Share = 0.875

  def box(self, height, width, new_height, new_width, rng):
    """Returns the same part in each epoch."""
    return _centred(height, width, new_width / new_height, self.fraction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(Crop):
  """A part of random area, proportions and position (https://arxiv.org/abs/1409.4842, section 6).

  If ten draws do not fit into the image, the crop is its largest central part with proportions in
  the range.

  Attributes:
    area: smallest and largest area, as a share of the area of the image.
    aspect: smallest and largest width over height; the logarithm is uniformly distributed.
  """

  area: tuple[Share, Share] = (0.08, 1.0)
  aspect: tuple[Positive, Positive] = (3 / 4, 4 / 3)

  def __post_init__(self):
    for name in ('area', 'aspect'):
      smallest, largest = getattr(self, name)
      if smallest > largest:
        raise UserError(
          f'RandomResizedCrop.{name} = {getattr(self, name)}: the first must be the smallest'
        )

  def box(self, height, width, new_height, new_width, rng):
    """Returns a part that begins and ends at whole pixels."""
    smallest, largest = self.aspect
    for _ in range(10):
      area = height * width * rng.uniform(*self.area)
      aspect = math.exp(rng.uniform(math.log(smallest), math.log(largest)))
      rows, columns = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
      if 0 < rows <= height and 0 < columns <= width:
        top, left = (int(rng.integers(n + 1)) for n in (height - rows, width - columns))
        return Box(left, top, left + columns, top + rows)
    return _centred(height, width, min(max(width / height, smallest), largest), 1.0)


def _centred(height: int, width: int, aspect: float, fraction: float) -> Box:
  """Returns the largest central part with a ratio of width to height, times `fraction`."""
  columns = fraction * min(width, height * aspect)
  rows = fraction * min(height, width / aspect)
  left, top = (width - columns) / 2, (height - rows) / 2
  return Box(left, top, width - left, height - top)


@dataclasses.dataclass(frozen=True)
class CropAndResize:
  """Crops images of any size and resizes them to height x width.

  Attributes:
    crop: selects the part.
    height: new height in pixels.
    width: new width in pixels.
  """

  crop: Crop
  height: int
  width: int

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the row with the resized `image`, uint8 or float32 [height, width, channels].

    Args:
      row: `image` uint8 or float, [old height, old width] or [old height, old width, channels].
      rng: draws the part.
    """
    image = np.asarray(row['image'])
    if image.dtype != np.uint8:
      image = image.astype(np.float32)
    if image.ndim == 2:
      image = image[..., None]
    height, width, _ = image.shape
    box = self.crop.box(height, width, self.height, self.width, rng)
    return {**row, 'image': resize(image, self.height, self.width, box)}
