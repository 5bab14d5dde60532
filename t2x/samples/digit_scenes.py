"""Scenes drawn from handwritten digits, for detectors and for segmentation."""

import dataclasses

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Size
from t2x.data.crops import resize
from t2x.data.prepared_folders import fingerprint
from t2x.samples.digits import in_published_order
from t2x.samples.fetched import Sample

__all__ = ['DigitScenes']

# Parts of the images of scikit-learn in their order, which is that of the writers: 13 of about 138 images each. 140
# images are left out between two parts, so that no writer is in both.
PARTS = {'train': (0, 1000), 'validation': (1140, 1390), 'test': (1530, 1797)}
# Number of scenes in each of the validation and test splits.
HELD_OUT = 500
# Value of masks where a digit is as faint as the noise.
FAINT = 255
# Sides of the pasted digits in pixels.
SIDES = 10, 17


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitScenes(Sample):
  """Drawn scenes of up to `most` handwritten digits on noise: `image` uint8 [side, side, 1], `boxes` float32 [n, 4]
  (left, top, width and height in pixels), their `labels`, and `mask` uint8 [side, side]: 0 for the ground, 1 + label
  for a digit, 255 where it is as faint as the noise.

  The digits are those of scikit-learn, of 10 to 16 pixels, whose squares overlap by at most a fifth; a tenth of the
  scenes is empty. Validation and test have 500 scenes each, of other writers than the train split.

  Attributes:
    side: height and width of a scene in pixels.
    most: maximum number of digits of a scene.
    train_examples: number of scenes in the train split.
  """

  packages = ('sklearn',)

  side: Size = 32
  most: Size = 3
  train_examples: Count = 8000

  def __post_init__(self):
    if not self.train_examples:
      raise UserError('DigitScenes.train_examples is not set: set a number')
    if self.side < SIDES[1] - 1:
      raise UserError(
        f'DigitScenes.side = {self.side}: must be at least {SIDES[1] - 1}, the largest digit'
      )

  def examples(self, split):
    digits = in_published_order()[slice(*PARTS[split])]
    random = np.random.default_rng((20261126, list(self.split_names).index(split)))
    for _ in range(self.train_examples if split == 'train' else HELD_OUT):
      yield self._scene(digits, random)

  def _scene(self, digits, random):
    canvas = random.integers(0, 48, (self.side, self.side)).astype(np.uint8)
    taken, mask = np.zeros(canvas.shape, int), np.zeros(canvas.shape, np.uint8)
    boxes, labels = [], []
    for _ in range(0 if random.random() < 0.1 else random.integers(1, self.most + 1)):
      image, label = digits[random.integers(len(digits))]
      side = int(random.integers(*SIDES))
      top, left = (int(n) for n in random.integers(0, self.side - side + 1, 2))
      place = slice(top, top + side), slice(left, left + side)
      if taken[place].mean() > 0.2:
        continue
      digit = resize(image, side, side)[..., 0]
      rows, columns = (np.flatnonzero(digit.max(axis=axis) > 48) for axis in (1, 0))
      canvas[place] = np.maximum(canvas[place], digit)
      mask[place] = np.where(digit > 48, label + 1, np.where(digit > 0, FAINT, mask[place]))
      taken[place] = 1
      size = np.ptp(columns) + 1, np.ptp(rows) + 1
      boxes.append((left + columns[0], top + rows[0], *size))
      labels.append(label)
    return {
      'image': canvas[..., None],
      'boxes': np.array(boxes, np.float32).reshape(-1, 4),
      'labels': np.array(labels, int),
      'mask': mask,
    }

  def fingerprint(self) -> str:
    """Identifies the settings: the data never changes."""
    return fingerprint(self, PARTS, HELD_OUT, SIDES, FAINT)
