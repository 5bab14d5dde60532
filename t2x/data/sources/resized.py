"""Resized images of another source."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import UInt8

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.data.crops import resize
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Source, origins
from t2x.data.sources.fields import RewritingSource

__all__ = ['Resized']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resized(RewritingSource):
  """The examples of a source, with `image` resized bilinearly, with antialiasing if it is reduced.

  Changes the proportions of images that have others; `CentralCrop` keeps them.

  Attributes:
    source: source whose examples have `image` uint8 [old height, old width, channels].
    height: height of the images in pixels.
    width: width of the images in pixels.
  """

  height: Size
  width: Size

  def rewrite(self, example):
    """Returns the example with its `image` as uint8 [height, width, channels]."""
    return example | {'image': _rounded(example['image'], self.height, self.width)}

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
