"""The images of another source at another resolution."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from t2x.data.folders import fingerprint
from t2x.data.sources.base import Examples, Source, label_values
from t2x.ranges import Size

__all__ = ['Resized', 'resize']


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
  rows, columns = _mixed(image.shape[0], height), _mixed(image.shape[1], width)
  return np.rint(np.einsum('hi,wj,ijc->hwc', rows, columns, image)).astype(np.uint8)


def _mixed(old: int, new: int) -> np.ndarray:
  """How much of each old place is in each new one: [new, old]."""
  centres = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
  low = np.minimum(centres.astype(int), old - 1)
  high, part = np.minimum(low + 1, old - 1), centres - low
  weights = np.zeros((new, old))
  np.add.at(weights, (np.arange(new), low), 1 - part)
  np.add.at(weights, (np.arange(new), high), part)
  return weights
