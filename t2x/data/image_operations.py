"""Operations on small images, uint8 [height, width, channels], each as Pillow defines it but for the
rounding of a grey value (Pillow cuts off what is rounded here)."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

__all__ = [
  'affine',
  'autocontrast',
  'brightness',
  'color',
  'contrast',
  'equalize',
  'posterize',
  'rotate',
  'sharpness',
  'solarize',
]

Image = UInt8[np.ndarray, 'height width channels']


def affine(image: Image, matrix: Sequence[float], fill: int) -> Image:
  """The pixel at (x, y) comes from (a x + b y + c, d x + e y + f), the nearest one; `fill` where that
  is outside. `matrix` is (a, b, c, d, e, f); places are those of the pixels' centres."""
  height, width = image.shape[:2]
  a, b, c, d, e, f = matrix
  x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
  column = np.floor(a * x + b * y + c).astype(int)
  row = np.floor(d * x + e * y + f).astype(int)
  inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
  found = image[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
  return np.where(inside[..., None], found, np.uint8(fill))


def rotate(image: Image, degrees: float, fill: int) -> Image:
  """Turned about its middle, counterclockwise."""
  height, width = image.shape[:2]
  sin, cos = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
  x, y = width / 2, height / 2
  return affine(image, (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y), fill)


def brightness(image: Image, factor: float) -> Image:
  """Away from black: 0 is black, 1 the image, more is brighter."""
  return _blend(np.zeros_like(image), image, factor)


def contrast(image: Image, factor: float) -> Image:
  """Away from the mean of the greys."""
  return _blend(np.full_like(image, _grey(image).mean() + 0.5), image, factor)


def color(image: Image, factor: float) -> Image:
  """Away from its greys; an image of one channel stays as it is."""
  return _blend(_grey(image)[..., None], image, factor)


def sharpness(image: Image, factor: float) -> Image:
  """Away from a smoothed image: each pixel 5/13, its eight neighbours 1/13; the border stays."""
  height, width = image.shape[:2]
  smooth = image.astype(np.float64)
  if min(height, width) > 2:
    near = sum(smooth[i : i + height - 2, j : j + width - 2] for i in range(3) for j in range(3))
    smooth[1:-1, 1:-1] = np.rint((near + 4 * smooth[1:-1, 1:-1]) / 13)
  return _blend(smooth, image, factor)


def posterize(image: Image, bits: int) -> Image:
  """Keeps the first of each value's 8 bits."""
  return image & np.uint8(256 - 2 ** (8 - bits))


def solarize(image: Image, threshold: float) -> Image:
  """Turns values from `threshold` on into 255 minus themselves."""
  return np.where(image < threshold, image, 255 - image)


def autocontrast(image: Image) -> Image:
  """Stretches each channel to 0..255."""
  low, high = (f(image, axis=(0, 1)).astype(np.float64) for f in (np.min, np.max))
  stretched = (image - low) * (255 / np.maximum(high - low, 1))
  return np.where(high > low, _bytes(stretched), image)


def equalize(image: Image) -> Image:
  """Makes the histogram of each channel flat, as far as its values can be told apart."""
  return np.stack([_equalized(channel) for channel in np.moveaxis(image, -1, 0)], axis=-1)


def _equalized(channel: np.ndarray) -> np.ndarray:
  counts = np.bincount(channel.ravel(), minlength=256)
  step = (channel.size - counts[counts.nonzero()[0][-1]]) // 255
  if not step:
    return channel
  before = np.concatenate([[0], np.cumsum(counts)[:-1]])
  return np.minimum((before + step // 2) // step, 255).astype(np.uint8)[channel]


def _grey(image: Image) -> np.ndarray:
  """Brightness of each pixel (ITU-R 601 where there are three channels), a whole number."""
  if image.shape[-1] != 3:
    return np.rint(image.mean(axis=-1))
  return np.rint(image @ np.array([0.299, 0.587, 0.114]))


def _blend(other: np.ndarray, image: Image, factor: float) -> Image:
  """`other` for factor 0, the image for 1, beyond the image for more."""
  return _bytes(other + factor * (image.astype(np.float64) - other))


def _bytes(values: np.ndarray) -> np.ndarray:
  return np.rint(np.clip(values, 0, 255)).astype(np.uint8)
