"""The images of another source at another resolution."""

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
    """The example at `index`, its `image` uint8 [height, width, channels]."""
    example = self.examples[index]
    return example | {'image': resize(example['image'], self.height, self.width)}

  def label_values(self):
    """Those of the source."""
    return label_values(self.examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resized(Source):
  """The examples of `source`, each `image` resized bilinearly.

  Attributes:
    source: has `image` uint8 [its height, its width, channels].
    height: rows of pixels.
    width: columns of pixels.
  """

  source: Source
  height: Size
  width: Size

  def splits(self) -> tuple[str, ...]:
    """Those of the source."""
    return self.source.splits()

  def load(self, split: str) -> Images:
    """The source's split."""
    return Images(self.source.load(split), self.height, self.width)

  def fingerprint(self) -> str:
    """Of the source and the size."""
    return fingerprint('Resized', self.source.fingerprint(), self.height, self.width)


def resize(
  image: UInt8[np.ndarray, 'old_height old_width channels'], height: int, width: int
) -> UInt8[np.ndarray, 'height width channels']:
  """Bilinear between the centres of pixels, the border's repeated beyond them. To a smaller size
  without a filter: halve in steps what shrinks by much."""
  from PIL import Image

  # Pillow's own `resize` filters where it shrinks. In floats, because bytes are cut off, not rounded.
  matrix = (image.shape[1] / width, 0, 0, 0, image.shape[0] / height, 0)
  channels = [
    Image.fromarray(channel).transform(
      (width, height), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    )
    for channel in np.moveaxis(image.astype(np.float32), -1, 0)
  ]
  return np.rint(np.dstack([np.asarray(channel) for channel in channels])).astype(np.uint8)
