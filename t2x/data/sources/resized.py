"""Resized images of another source."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Examples, Source, label_values
from t2x.ranges import Size


class Images(Examples):
  """Examples whose images are resized when they are read."""

  def __init__(self, examples: Sequence, height: int, width: int):
    self.examples, self.height, self.width = examples, height, width

  def __len__(self) -> int:
    return len(self.examples)

  def __getitem__(self, index):
    """Returns the example at `index`, its `image` uint8 [height, width, channels]."""
    example = self.examples[index]
    return example | {'image': resize(example['image'], self.height, self.width)}

  def label_values(self):
    """Returns the label values of the source."""
    return label_values(self.examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resized(Source):
  """The examples of a source, with `image` resized bilinearly.

  Attributes:
    source: source whose examples have `image` uint8 [old height, old width, channels].
    height: height of the images in pixels.
    width: width of the images in pixels.
  """

  source: Source
  height: Size
  width: Size

  def splits(self) -> tuple[str, ...]:
    """Returns the splits of the source."""
    return self.source.splits()

  def load(self, split: str) -> Images:
    """Returns a split of the source, resized."""
    return Images(self.source.load(split), self.height, self.width)

  def fingerprint(self) -> str:
    """Identifies the source and the size."""
    return fingerprint('Resized', self.source.fingerprint(), self.height, self.width)


def resize(
  image: UInt8[np.ndarray, 'old_height old_width channels'], height: int, width: int
) -> UInt8[np.ndarray, 'height width channels']:
  """Interpolates bilinearly between pixel centres; beyond them, border pixels are repeated.

  No filter is applied when an image is reduced: reduce it by large factors in several steps.
  """
  from PIL import Image

  # Pillow's `resize` would filter. In floats, because Pillow truncates bytes instead of rounding.
  matrix = (image.shape[1] / width, 0, 0, 0, image.shape[0] / height, 0)
  channels = [
    Image.fromarray(channel).transform(
      (width, height), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    )
    for channel in np.moveaxis(image.astype(np.float32), -1, 0)
  ]
  return np.rint(np.dstack([np.asarray(channel) for channel in channels])).astype(np.uint8)
