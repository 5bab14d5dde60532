"""Images with boxes: crops, resizing and flips that move the boxes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from t2x.base.errors import UserError
from t2x.data.crops import Box, Crop, resize
from t2x.data.images import normalise

__all__ = ['PrepareBoxes']


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareBoxes:
  """Prepares an image and the boxes of its objects for a detector; deterministic without crop and flip.

  Boxes are cut at the edge of a crop, and objects outside of it are left out, as are groups of objects (`crowd`).

  Attributes:
    height: height to which the image is resized, in pixels.
    width: width to which it is resized.
    num_classes: number of classes, which is also the label of padding.
    num_boxes: number of boxes to pad to.
    crop: selects the part of the image; None: all of it.
    flip: mirrors half of the images horizontally.
    mean: subtracted from pixels scaled to [0, 1]; a number, or a number per channel.
    std: divisor of the difference; a number, or a number per channel.
  """

  height: int
  width: int
  num_classes: int
  num_boxes: int
  crop: Crop | None = None
  flip: bool = False
  mean: float | Sequence[float] = 0.5
  std: float | Sequence[float] = 0.5

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns `image` float32 [height, width, channels], `boxes` float32 [num_boxes, 4] (centre, width and height as
    shares of the image), `label` int32 [num_boxes] and `weight` float32 (1).

    Args:
      row: `image` uint8, or float from 0 to 1, [old height, old width] or [old height, old width, channels];
        `boxes` [n, 4], left, top, width and height in pixels; `labels` [n]; optionally `crowd` [n], true for a
        box around a group.
      rng: draws the crop and the flip.

    Raises:
      UserError: a label is no class, a box is invalid or outside of its image, or an image has
        more than num_boxes objects.
    """
    image = np.asarray(row['image'])
    image = image[..., None] if image.ndim == 2 else image
    boxes, labels, crowd = objects_of(row, self.num_classes)
    height, width, _ = image.shape
    part = Box(0, 0, width, height)
    for box in boxes[~_is_near(boxes, width, height)]:
      raise UserError(
        f'an object has the box {box.tolist()}, [left, top, width, height], outside its image of '
        f'{width} x {height} pixels'
      )
    if self.crop is not None:
      part = self.crop.box(height, width, self.height, self.width, rng)
    if self.crop is not None or (height, width) != (self.height, self.width):
      image = image if image.dtype == np.uint8 else image.astype(np.float32)
      image = resize(image, self.height, self.width, part)
    edges, inside = _within(boxes, part)
    edges, labels = edges[inside & ~crowd], labels[inside & ~crowd]
    if self.flip and rng.random() < 0.5:
      image = image.take(np.arange(self.width)[::-1], axis=1)
      edges = np.stack([1 - edges[:, 2], edges[:, 1], 1 - edges[:, 0], edges[:, 3]], axis=1)
    return {
      'image': normalise(image, self.mean, self.std),
      **self._padded(edges, labels),
      'weight': np.float32(1.0),
    }

  def _padded(self, edges: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    if len(labels) > self.num_boxes:
      raise UserError(
        f'an image has {len(labels)} objects, but Detection.num_queries = {self.num_boxes}: raise it'
      )
    boxes = np.zeros((self.num_boxes, 4), np.float32)
    label = np.full(self.num_boxes, self.num_classes, np.int32)
    first, last = edges[:, :2], edges[:, 2:]
    boxes[: len(labels)] = np.concatenate([(first + last) / 2, last - first], axis=1)
    label[: len(labels)] = labels
    return {'boxes': boxes, 'label': label}


def objects_of(
  row: Mapping[str, Any], num_classes: int
) -> tuple[Float32[np.ndarray, 'objects 4'], np.ndarray, Bool[np.ndarray, ' objects']]:
  """Returns left, top, width and height of the boxes of an example in pixels, their labels, and which are groups.

  Raises:
    UserError: a label is no class, a box has an invalid side, or the numbers of boxes and labels differ.
  """
  boxes = np.asarray(row['boxes'], np.float32).reshape(-1, 4)
  labels = np.asarray(row['labels'], np.int64).reshape(-1)
  crowd = np.asarray(row.get('crowd', np.zeros(len(labels))), bool).reshape(-1)
  if not len(boxes) == len(labels) == len(crowd):
    raise UserError(
      f'an image has {len(boxes)} boxes, {len(labels)} labels and {len(crowd)} values of crowd: give one for each box'
    )
  for box in boxes[~(np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] >= 0).all(axis=1))]:
    raise UserError(f'an object has the box {box.tolist()}: sides must be finite and not negative')
  for label in labels:
    if not 0 <= label < num_classes:
      raise UserError(
        f'an object has the label {label}: labels must be integers from 0 to {num_classes - 1}; set '
        'Detection.num_classes to the number of classes of the data'
      )
  return boxes, labels, crowd


def _is_near(
  boxes: Float32[np.ndarray, 'objects 4'], width: int, height: int
) -> Bool[np.ndarray, ' objects']:
  """Returns which boxes are within an image, or at most a pixel outside, which may be due to rounding."""
  ends = boxes[:, :2] + boxes[:, 2:]
  return (boxes[:, :2] >= -1).all(axis=1) & (ends <= [width + 1, height + 1]).all(axis=1)


def _within(
  boxes: Float32[np.ndarray, 'objects 4'], part: Box
) -> tuple[Float32[np.ndarray, 'objects 4'], Bool[np.ndarray, ' objects']]:
  """Returns the edges of boxes as shares of a part of the image, cut at its edges, and which boxes are in it."""
  start, end = np.asarray(part[:2], np.float32), np.asarray(part[2:], np.float32)
  first = (boxes[:, :2] - start) / (end - start)
  last = (boxes[:, :2] + boxes[:, 2:] - start) / (end - start)
  first, last = np.clip(first, 0, 1), np.clip(last, 0, 1)
  return np.concatenate([first, last], axis=1), (last > first).all(axis=1)
