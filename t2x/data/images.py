"""Image preparation: normalisation, and random crops and flips in training
(He et al. 2016, https://arxiv.org/abs/1512.03385)."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import make_tuples

__all__ = ['Augmentation', 'PrepareImage', 'channel_statistics', 'check_label']

# The label of an image without one.
UNLABELLED = -1
# Resizing may leave the range of the pixels by so much.
_ROUNDING = 1e-3


class Augmentation(abc.ABC):
  """A transform of training images: of raw pixels, or of normalised images."""

  @abc.abstractmethod
  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> Mapping[str, Any]:
    """Returns the row with the augmented `image`."""


def check_label(label: object, num_classes: int, where: str) -> None:
  """Raises a UserError unless `label` is an integer from 0 to num_classes - 1."""
  if not isinstance(label, int | np.integer) or not 0 <= label < num_classes:
    raise UserError(
      f'{where} has the label {label!r}: labels must be integers from 0 to {num_classes - 1}; set '
      'ImageClassification.num_classes to the number of classes of the data'
    )


def check_pixels(image: np.ndarray) -> None:
  """Raises a UserError unless an image is uint8, or float from 0 to 1 up to rounding."""
  if image.dtype != np.uint8:
    low, high = float(image.min()), float(image.max())
    if image.dtype.kind != 'f' or not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
      raise UserError(
        f'an image has values from {low:g} to {high:g} of type {image.dtype}: images must be uint8, or float from '
        '0 to 1'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareImage:
  """Prepares `image` and `label` for a model; deterministic without padding and flips.

  Attributes:
    mean: subtracted from pixels scaled to [0, 1]; a number, or a number per channel.
    std: divisor of the difference; a number, or a number per channel.
    crop_padding: width in pixels of the black border around the image before a random crop of the
      original size.
    flip: mirrors half of the images horizontally.
    num_classes: number of classes, for a check of the labels; None: labels are not checked.
    allow_unlabelled: whether images may lack a label.
  """

  mean: float | Sequence[float] = 0.5
  std: float | Sequence[float] = 0.5
  crop_padding: int = 0
  flip: bool = False
  # Only validates labels, so it is not part of the fingerprint.
  num_classes: int | None = dataclasses.field(default=None, repr=False, compare=False)
  allow_unlabelled: bool = dataclasses.field(default=False, repr=False, compare=False)

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns `image` float32 [height, width, channels], `label` int32 (`UNLABELLED` without one)
    and `weight` float32 (1).

    Args:
      row: `image` uint8, or float from 0 to 1, [height, width] or [height, width, channels];
        `label`.
      rng: draws the crop and the flip.

    Raises:
      UserError: the label is invalid, or missing where it must not be.
    """
    label = row.get('label')
    if label is None:
      if not self.allow_unlabelled:
        raise UserError(
          'an image has no label: add one, or set ImageClassification.distillation, which learns from unlabelled '
          'training images'
        )
      label = UNLABELLED
    elif self.num_classes is not None:
      check_label(label, self.num_classes, 'an image')
    image = np.asarray(row['image'])
    if image.ndim == 2:
      image = image[..., None]
    if self.crop_padding:
      image = random_crop(image, self.crop_padding, rng)
    if self.flip and rng.random() < 0.5:
      # Faster to compute with than the view image[:, ::-1].
      image = image.take(np.arange(image.shape[1])[::-1], axis=1)
    return {
      'image': normalise(image, self.mean, self.std),
      'label': np.int32(label),
      'weight': np.float32(1.0),
    }


def fix_statistics(settings: object, shape: str) -> None:
  """Makes `mean` and `std` of frozen settings of images tuples, so that equal settings compare and hash equal.

  Args:
    settings: the settings, when they are made.
    shape: name of their setting whose last value is the number of channels.

  Raises:
    UserError: `mean` or `std` has neither one value nor one per channel.
  """
  kind, sides = type(settings).__name__, getattr(settings, shape)
  for name in ('mean', 'std'):
    value = getattr(settings, name)
    if isinstance(value, Sequence):
      make_tuples(settings, name)
      if len(value) != sides[-1]:
        raise UserError(
          f'{kind}.{name} = {tuple(value)}: must be a number, or one number for each channel of '
          f'{kind}.{shape} = {sides}'
        )


def normalise(
  image: np.ndarray, mean: float | Sequence[float], std: float | Sequence[float]
) -> np.ndarray:
  """Returns (pixels - mean) / std, float32 [height, width, channels].

  Args:
    image: uint8, or float from 0 to 1, [height, width, channels].
    mean: of pixels in [0, 1]; a number, or a number per channel.
    std: likewise.
  """
  check_pixels(image)
  height, width, channels = image.shape
  # In whole rows and in place: several times as fast as operations on three channels.
  pixels = image.reshape(height, -1).astype(np.float32)
  if image.dtype == np.uint8:
    pixels /= np.float32(255.0)
  for operation, values in ((np.subtract, mean), (np.divide, std)):
    of_channels = np.broadcast_to(np.asarray(values, np.float32), channels)
    operation(pixels, np.tile(of_channels, width), out=pixels)
  return pixels.reshape(image.shape)


def channel_statistics(images: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
  """Returns mean and standard deviation of each channel, of pixels scaled to [0, 1].

  Images have equal weights, whatever their sizes.

  Args:
    images: uint8, or float from 0 to 1, [height, width] or [height, width, channels].

  Raises:
    UserError: the images differ in the number of channels, or have other values.
  """
  moments = []
  for image in images:
    check_pixels(image)
    pixels = np.asarray(image, np.float64) / (255 if image.dtype == np.uint8 else 1)
    pixels = pixels.reshape(-1, image.shape[2] if image.ndim == 3 else 1)
    moments.append(np.stack([pixels.mean(0), (pixels**2).mean(0)]))
  numbers = sorted({moment.shape[1] for moment in moments})
  if len(numbers) > 1:
    raise UserError(f'images differ in the number of channels: {", ".join(map(str, numbers))}')
  mean, square = np.mean(moments, axis=0)
  return mean, np.sqrt(np.maximum(square - mean**2, 0.0))


def random_crop(image: np.ndarray, padding: int, rng: np.random.Generator) -> np.ndarray:
  """Shifts an image [height, width, channels] by up to `padding` pixels in each direction."""
  height, width = image.shape[:2]
  top, left = rng.integers(0, 2 * padding + 1, size=2)
  padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
  return padded[top : top + height, left : left + width]
