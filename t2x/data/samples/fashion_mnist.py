"""Fashion-MNIST (https://arxiv.org/abs/1708.07747) and other data in IDX files of that layout."""

import dataclasses
import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Text
from t2x.data.prepared_folders import cache_folder, fingerprint
from t2x.data.sources.base import ClassSource, Examples, require_split
from t2x.data.sources.digests import digest_of

__all__ = ['FashionMNIST']

CLASSES = (
  'T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat', 'Sandal', 'Shirt', 'Sneaker', 'Bag', 'Ankle boot'
)  # fmt: skip
PREFIXES = {'train': 'train', 'test': 't10k'}


class Images(Examples):
  """Images and labels in two arrays."""

  def __init__(self, images: np.ndarray, labels: np.ndarray):
    self.images, self.labels = images, labels

  def __len__(self) -> int:
    return len(self.images)

  def __getitem__(self, index):
    """Returns `image` uint8 [height, width, 1] and `label`."""
    return {'image': self.images[index], 'label': int(self.labels[index])}

  def label_values(self):
    """Returns the labels of all images."""
    return set(np.unique(self.labels).tolist())


@dataclasses.dataclass(frozen=True, kw_only=True)
class FashionMNIST(ClassSource):
  """60,000 train and 10,000 test images, with `image` uint8 [28, 28, 1] and `label` 0..9.

  Attributes:
    folder: folder with `train-images-idx3-ubyte` etc., with or without `.gz`, at any depth; None:
      the folder of `t2x data fetch fashion_mnist`.
  """

  folder: Text | None = None

  def splits(self) -> tuple[str, ...]:
    """Returns train and test."""
    return tuple(PREFIXES)

  def class_names(self) -> tuple[str, ...]:
    """Returns the names of Fashion-MNIST's classes; none for the data of another folder."""
    return CLASSES if self.folder is None else ()

  def _file(self, split: str, kind: str) -> Path:
    folder = Path(self.folder or cache_folder() / 'downloads' / 'fashion_mnist').expanduser()
    name = f'{PREFIXES[split]}-{kind}-ubyte'
    matches = [path for suffix in ('', '.gz') for path in sorted(folder.rglob(name + suffix))]
    if not matches:
      raise UserError(
        f'no {name} in {folder}: run `t2x data fetch fashion_mnist'
        f'{f" --out {folder}" if self.folder else ""}`, or set FashionMNIST.folder'
      )
    return matches[0]

  def load(self, split: str) -> Images:
    """Returns the images of a split, in memory."""
    require_split(self, split)
    images = _read_idx(self._file(split, 'images-idx3'))
    labels = _read_idx(self._file(split, 'labels-idx1'))
    if len(images) != len(labels):
      raise UserError(
        f'{self._file(split, "images-idx3")}: {len(images)} images but {len(labels)} labels: '
        'fetch the files again'
      )
    return Images(images[..., None], labels)

  def fingerprint(self) -> str:
    """Identifies the names and the content of the files."""
    kinds = ('images-idx3', 'labels-idx1')
    files = [self._file(split, kind) for split in self.splits() for kind in kinds]
    return fingerprint('FashionMNIST', digest_of(files))


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
