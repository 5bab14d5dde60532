"""Regions that a model of pixels completes: whole images, halves, holes, or the colours of grey images."""

import abc
import dataclasses
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Int, UInt8

from t2x.base.ranges import NonNegative, Range
from t2x.data.tokenizers.palette import PaletteTokenizer

__all__ = ['AllPixels', 'CentralPixels', 'Colours', 'HiddenPixels', 'LowerPixels']

Share = Annotated[float, Range('0 < x <= 1')]
# Grey of red, green and blue (ITU-R BT.601).
GREY = np.array([0.299, 0.587, 0.114])
# The grey of hidden pixels in pictures.
UNKNOWN = 128


class HiddenPixels(abc.ABC):
  """Hidden part of an image, which the model completes."""

  @abc.abstractmethod
  def allowed(
    self, palette: PaletteTokenizer, image: Int[np.ndarray, 'height width']
  ) -> Bool[np.ndarray, 'height width colours']:
    """Returns the allowed colours of each pixel, given the visible part of the image.

    Args:
      palette: the colours.
      image: ids of the pixels.
    """

  @abc.abstractmethod
  def visible(
    self, palette: PaletteTokenizer, image: Int[np.ndarray, 'height width']
  ) -> UInt8[np.ndarray, 'height width channels']:
    """Returns a picture of the visible part."""


class HiddenPlaces(HiddenPixels):
  """Base class for hidden pixels at some places; all other pixels are visible."""

  @abc.abstractmethod
  def places(self, height: int, width: int) -> Bool[np.ndarray, '{height} {width}']:
    """Returns True for hidden pixels."""

  def allowed(self, palette, image):
    colours = np.arange(palette.first, palette.first + len(palette.colours))
    return (image[..., None] == colours) | self.places(*image.shape)[..., None]

  def visible(self, palette, image):
    picture = palette.image(image.ravel(), *image.shape)
    return np.where(self.places(*image.shape)[..., None], UNKNOWN, picture).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class AllPixels(HiddenPlaces):
  """Nothing is known: samples of the model."""

  def places(self, height, width):
    return np.ones((height, width), bool)


@dataclasses.dataclass(frozen=True)
class LowerPixels(HiddenPlaces):
  """The lower part is hidden (completion).

  Attributes:
    share: share of the rows.
  """

  share: Share = 0.5

  def places(self, height, width):
    return np.broadcast_to(
      np.arange(height)[:, None] >= height - self.share * height, (height, width)
    )


@dataclasses.dataclass(frozen=True)
class CentralPixels(HiddenPlaces):
  """A rectangle in the middle is hidden (inpainting). A model that reads rows from top to bottom does not see the known
  pixels below a hidden one.

  Attributes:
    share: share of the rows, and of the columns.
  """

  share: Share = 0.5

  def places(self, height, width):
    rows, columns = (
      np.abs(np.arange(n) - (n - 1) / 2) < self.share * n / 2 for n in (height, width)
    )
    return rows[:, None] & columns


@dataclasses.dataclass(frozen=True)
class Colours(HiddenPixels):
  """The grey of each pixel is known, up to a tolerance, and its colour is hidden (colourisation).

  Attributes:
    tolerance: largest difference of the grey of an allowed colour from that of the pixel, of 255.
  """

  tolerance: NonNegative = 8.0

  def allowed(self, palette, image):
    grey = _grey(palette)
    return np.abs(grey[image - palette.first][..., None] - grey) <= self.tolerance

  def visible(self, palette, image):
    grey = np.rint(_grey(palette)[image - palette.first]).astype(np.uint8)
    return np.repeat(grey[..., None], palette.colours.shape[1], axis=-1)


def _grey(palette: PaletteTokenizer) -> np.ndarray:
  """Returns the grey of each colour, from 0 to 255."""
  colours = palette.colours
  return colours[:, 0] if colours.shape[1] == 1 else colours @ GREY
