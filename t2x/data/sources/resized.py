"""Resized images of another source."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.data.crops import resize
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Examples, Source, label_values, origins

__all__ = ['Resized']


class Images(Examples):
  """Examples whose images are resized when they are read."""

  def __init__(self, examples: Sequence, height: int, width: int):
    self.examples, self.height, self.width = examples, height, width

  def __len__(self) -> int:
    return len(self.examples)

  def __getitem__(self, index):
    """Returns the example at `index`, its `image` uint8 [height, width, channels]."""
    example = self.examples[index]
    return example | {'image': _rounded(example['image'], self.height, self.width)}

  def label_values(self):
    """Returns the label values of the source."""
    return label_values(self.examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resized(Source):
  """The examples of a source, with `image` resized bilinearly, with antialiasing if it is reduced.

  Changes the proportions of images that have others; `CentralCrop` keeps them.

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
    """Identifies the source, the size and the filter."""
    return fingerprint('Resized, antialiased', self.source.fingerprint(), self.height, self.width)


def resized_as(source: Source, image: UInt8[np.ndarray, 'old_height old_width channels']) -> Any:
  """Returns an image of another origin in the size of the images of a source, which may contain `Resized`."""
  for inner in reversed([*origins(source)]):
    image = _rounded(image, inner.height, inner.width) if isinstance(inner, Resized) else image
  return image


def _rounded(image: np.ndarray, height: int, width: int) -> UInt8[np.ndarray, '_ _ _']:
  if image.dtype != np.uint8:
    raise UserError(f'Resized needs images of type uint8, not {image.dtype}')
  # In floats, so that only the result is rounded.
  return np.rint(resize(image.astype(np.float32), height, width)).astype(np.uint8)
