"""Handwritten digits of scikit-learn: 1,797 images of 8x8 pixels."""

import dataclasses

import numpy as np

from t2x.base.packages import imported
from t2x.data.prepared_folders import fingerprint
from t2x.samples.fetched import Sample

__all__ = ['Digits']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits(Sample):
  """Digits with `image` uint8 [8, 8, 1] (the data's 0..16 scaled to 0..255) and `label` 0..9.

  Every fifth image is a test image: 1,438 train, 359 test.
  """

  packages = ('sklearn',)

  split_names = ('train', 'test')

  def examples(self, split):
    for i, (image, label) in enumerate(in_published_order()):
      if (i % 5 == 4) == (split == 'test'):
        yield {'image': image, 'label': label}

  def fingerprint(self) -> str:
    """Identifies the class only: the data never changes."""
    return fingerprint(self)


def in_published_order() -> list[tuple[np.ndarray, int]]:
  """Returns all images and labels in the order of scikit-learn, which is that of the writers."""
  images, labels = imported('sklearn.datasets', 'Digits').load_digits(return_X_y=True)
  images = np.round(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
  return list(zip(images, map(int, labels), strict=True))
