"""Preparation of images whose pixels have classes: crops and flips move the masks, too."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Integer

from t2x.base.errors import UserError
from t2x.data.crops import Box, Crop, resize
from t2x.data.images import normalise

__all__ = ['PrepareMask']


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareMask:
  """Prepares `image` and `mask` for a model; deterministic without random crops and flips.

  Attributes:
    height: rows of the prepared image.
    width: its columns.
    num_classes: number of classes.
    ignored: value of a mask for pixels without a class.
    mean: subtracted from pixels scaled to [0, 1]; a number, or a number per channel.
    std: divisor of the difference; a number, or a number per channel.
    crop: selects the part that is resized, the image bilinearly and the mask to the nearest pixel; None: images
      have the prepared size.
    flip: mirrors half of the images horizontally.
  """

  height: int
  width: int
  num_classes: int
  ignored: int
  mean: float | Sequence[float] = 0.5
  std: float | Sequence[float] = 0.5
  crop: Crop | None = None
  flip: bool = False

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns `image` float32 [height, width, channels], `mask` int32 [height, width] and `weight` float32 (1).

    Args:
      row: `image` uint8, or float from 0 to 1, [rows, columns] or [rows, columns, channels]; `mask`, integers
        [rows, columns].
      rng: draws the crop and the flip.

    Raises:
      UserError: the mask does not fit the image, or has a value that is no class.
    """
    image, mask = np.asarray(row['image']), np.asarray(row['mask'])
    image = image[..., None] if image.ndim == 2 else image
    check_mask(mask, image.shape[:2], self.num_classes, self.ignored)
    mask = mask.astype(np.int32)
    if self.crop is not None:
      rows, columns = mask.shape
      box = self.crop.box(rows, columns, self.height, self.width, rng)
      image = image if image.dtype == np.uint8 else image.astype(np.float32)
      image = resize(image, self.height, self.width, box)
      mask = _nearest(mask, self.height, self.width, box)
    if self.flip and rng.random() < 0.5:
      image, mask = image[:, ::-1], mask[:, ::-1]
    return {
      'image': normalise(np.ascontiguousarray(image), self.mean, self.std),
      'mask': np.ascontiguousarray(mask),
      'weight': np.float32(1.0),
    }


def check_mask(mask: np.ndarray, sides: tuple[int, ...], num_classes: int, ignored: int) -> None:
  """Raises UserError unless a mask has integers below num_classes, or `ignored`, for each pixel of an image."""
  if mask.shape != sides or mask.dtype.kind not in 'ui':
    raise UserError(
      f'a mask has the shape {mask.shape} and the type {mask.dtype}, but its image has {sides[0]} x {sides[1]} pixels: '
      'masks must have one integer per pixel'
    )
  unknown = mask[(mask != ignored) & ((mask < 0) | (mask >= num_classes))]
  if unknown.size:
    raise UserError(
      f'a mask has the value {unknown.flat[0]}: values must be classes from 0 to {num_classes - 1}, or {ignored} for '
      'pixels without a class; set SemanticSegmentation.num_classes or SemanticSegmentation.ignored'
    )


def _nearest(
  mask: Integer[np.ndarray, 'rows columns'], height: int, width: int, box: Box
) -> Integer[np.ndarray, 'height width']:
  """Resizes a box of a mask: each pixel takes the value at its centre."""
  ys = box.top + (np.arange(height) + 0.5) * (box.bottom - box.top) / height
  xs = box.left + (np.arange(width) + 0.5) * (box.right - box.left) / width
  rows, columns = (
    np.clip(np.floor(at).astype(int), 0, size - 1)
    for at, size in zip((ys, xs), mask.shape, strict=True)
  )
  return mask[np.ix_(rows, columns)]
