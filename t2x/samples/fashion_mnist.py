"""Fashion-MNIST (https://arxiv.org/abs/1708.07747) and other data in IDX files of that layout."""

import dataclasses
import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from t2x.base.errors import UserError
from t2x.data.sources.base import ClassSource
from t2x.samples.fetched import Fetched, Sample

__all__ = ['FashionMNIST']

CLASSES = (
  'T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat', 'Sandal', 'Shirt', 'Sneaker', 'Bag', 'Ankle boot'
)  # fmt: skip
PREFIXES = {'train': 'train', 'test': 't10k'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FashionMNIST(Fetched, Sample, ClassSource):
  """60,000 train and 10,000 test images, with `image` uint8 [28, 28, 1] and `label` 0..9.

  Attributes:
    folder: folder with `train-images-idx3-ubyte` etc., with or without `.gz`, at any depth; None:
      the folder of `t2x data fetch fashion_mnist`.
  """

  data_set = 'fashion_mnist'
  split_names = tuple(PREFIXES)

  def class_names(self) -> tuple[str, ...]:
    """Returns the names of Fashion-MNIST's classes; none for the data of another folder."""
    return CLASSES if self.folder is None else ()

  def data_files(self):
    return [path for split in PREFIXES for path in self._files_of(split)]

  def _files_of(self, split: str) -> list[Path]:
    kinds = ('images-idx3', 'labels-idx1')
    return [self.find(f'**/{PREFIXES[split]}-{kind}-ubyte*')[0] for kind in kinds]

  def examples(self, split):
    path, labels_path = self._files_of(split)
    images, labels = _read_idx(path), _read_idx(labels_path)
    if len(images) != len(labels):
      raise UserError(
        f'{path}: {len(images)} images but {len(labels)} labels: fetch the files again'
      )
    for image, label in zip(images[..., None], labels.tolist(), strict=True):
      yield {'image': image, 'label': label}


def _read_idx(path: Path) -> np.ndarray:
  """Reads the array of an IDX file (http://yann.lecun.com/exdb/mnist/).

  The format is two zero bytes, type 8 (uint8), rank, the sizes as big-endian int32, the data.
  """
  try:
    data = gzip.decompress(path.read_bytes()) if path.suffix == '.gz' else path.read_bytes()
  except (OSError, EOFError, zlib.error) as error:
    raise UserError(f'{path} cannot be read: {error}') from error
  rank = data[3] if data[:3] == b'\x00\x00\x08' else 0
  shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i]) for i in range(rank)]
  if not rank or len(data) != 4 + 4 * rank + math.prod(shape):
    raise UserError(f'{path} is not a complete IDX file of uint8: fetch it again')
  return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)
