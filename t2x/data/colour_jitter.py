"""Random changes of brightness, contrast and saturation (as torchvision's ColorJitter)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import UInt8

from t2x.base.errors import UserError
from t2x.base.ranges import Fraction
from t2x.data.images import Augmentation, check_pixels

__all__ = ['ColourJitter']

# Weights of red, green and blue in the luminance (ITU-R BT.601).
LUMINANCE = np.array([0.2989, 0.587, 0.114], np.float32)


def adjusted(name: str, image: UInt8[np.ndarray, 'height width channels'], factor: float) -> Any:
  """Returns factor * image + (1 - factor) * a reference, cut to bytes.

  Args:
    name: 'brightness' (the reference is black), 'contrast' (the mean luminance) or 'saturation' (the
      luminance of each pixel).
    image: one channel (grey) or three (red, green, blue).
    factor: 1 changes nothing.
  """
  reference: np.ndarray | np.floating = np.float32(0)
  if name != 'brightness':
    luminance = image if image.shape[-1] == 1 else np.trunc(image @ LUMINANCE)[..., None]
    reference = luminance.astype(np.float32)
    reference = reference.mean() if name == 'contrast' else reference
  blend = np.float32(factor) * image.astype(np.float32) + np.float32(1 - factor) * reference
  return np.clip(blend, 0, 255).astype(np.uint8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColourJitter(Augmentation):
  """Changes brightness, contrast and saturation of an image by random factors, in random order.

  The factor of a change of strength s is uniform between 1 - s and 1 + s.

  Attributes:
    brightness: strength of the change of brightness.
    contrast: strength of the change of contrast.
    saturation: strength of the change of saturation, of images with three channels.
  """

  brightness: Fraction = 0.0
  contrast: Fraction = 0.0
  saturation: Fraction = 0.0

  def __post_init__(self):
    if not any(self._strengths.values()):
      raise UserError('ColourJitter changes nothing: set brightness, contrast or saturation')

  @property
  def _strengths(self) -> dict[str, float]:
    return {n: getattr(self, n) for n in ('brightness', 'contrast', 'saturation')}

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the row with the changed `image`, uint8 [height, width, channels]. A float image is
    converted from [0, 1].

    Raises:
      UserError: the image has neither one channel nor three, or is grey and `saturation` is set.
    """
    image = np.asarray(row['image'])
    check_pixels(image)
    if image.dtype != np.uint8:
      image = np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)
    image = image[..., None] if image.ndim == 2 else image
    if image.shape[-1] != 3 and (image.shape[-1] != 1 or self.saturation):
      raise UserError(
        f'ColourJitter got an image with {image.shape[-1]} channels: saturation needs three, brightness and contrast '
        'one or three'
      )
    names = [name for name, strength in self._strengths.items() if strength]
    for name in rng.permutation(names).tolist():
      strength = self._strengths[name]
      image = adjusted(name, image, rng.uniform(1 - strength, 1 + strength))
    return {**row, 'image': image}
