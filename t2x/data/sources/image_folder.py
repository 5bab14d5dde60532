"""Photographs and other images in one folder per class."""

import bisect
import contextlib
import dataclasses
import io
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from t2x.base.errors import UserError, first_line
from t2x.base.external_files import read_bytes, read_json
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import BulkExamples, ClassSource
from t2x.data.sources.digests import digest_of, reading
from t2x.data.sources.file_source import LocalSource
from t2x.data.sources.subset import spread

__all__ = ['ImageFolder']

EXTENSIONS = ('.bmp', '.gif', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')
# Number of images of a split whose content is part of the fingerprint.
SAMPLED = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFolder(LocalSource, ClassSource):
  """Images in FOLDER/CLASS/*.jpg (or .png, ...), with `image` uint8 [height, width, channels] and `label`.

  Labels are the positions of the sorted names of the train split's classes, or those of an imported classifier. Images
  are decoded when they are used, in their own sizes: `Resized` makes them equal. Hidden files are ignored.

  Attributes:
    labels: JSON file whose `id2label` names the class of each label, of which the folders may be a part:
      hub/config.json of an imported run. None: sorted names.
    train: folder of the split, with a folder per class.
    validation: folder of the split; None: no such split.
    test: folder of the split; None: no such split.
    channels: 3 converts images to RGB, 1 to shades of grey.
  """

  labels: str | None = None
  channels: Literal[1, 3] = 3

  def load(self, split: str) -> 'FolderImages':
    """Returns the images of a split, of which only the names are in memory.

    Raises:
      UserError: a folder cannot be read, has no classes, has a class that the train split or `labels` lacks or
        a class without images, or contains a file that is no image.
    """
    folder = self._folder(split)
    classes = self.class_names()
    names = {name: _image_names(folder / name) for name in _class_names(folder)}
    if unknown := sorted(names.keys() - {*classes}):
      where = f"train = '{self.train}'" if self.labels is None else f"labels = '{self.labels}'"
      raise UserError(f"{folder} has the class '{unknown[0]}', which ImageFolder.{where} lacks")
    if self.labels and (several := [name for name in names if classes.count(name) > 1]):
      raise UserError(
        f"ImageFolder.labels = '{self.labels}' has several classes '{several[0]}', as {folder} has: give them names of "
        'their own'
      )
    files = [names.get(name, np.array([], 'S')) for name in classes]
    return FolderImages(folder, classes, files, self.channels)

  def class_names(self) -> list[str]:
    """Returns the name of each class."""
    if self.labels is not None:
      return _named_labels(Path(self.labels))
    return _class_names(self._folder('train'))

  def fingerprint(self) -> str:
    """Identifies the names of all images, and the content of 64 images of each split."""
    digests = []
    for split in self.splits():
      images = self.load(split)
      counts = [len(files) for files in images.files]
      names = fingerprint(images.classes, counts, *(b'\0'.join(files) for files in images.files))
      sampled = spread(min(SAMPLED, len(images)), len(images))
      digests.append((split, names, digest_of(images.path(i) for i in sampled)))
    return fingerprint('ImageFolder', self.channels, digests)

  def _folder(self, split: str) -> Path:
    setting, path = self.setting(split)
    if not Path(path).is_dir():
      raise UserError(f"{setting} = '{path}' is not a folder (current folder: {Path.cwd()})")
    return Path(path)


class FolderImages(BulkExamples):
  """Images in folders by class."""

  def __init__(
    self, folder: Path, classes: Sequence[str], files: Sequence[np.ndarray], channels: int
  ):
    """
    Args:
      folder: folder of the split.
      classes: name of each class.
      files: for each class, the sorted file names, in UTF-8.
      channels: number of channels.
    """
    self.folder, self.classes, self.files, self.channels = folder, classes, files, channels
    self.ends = list(itertools.accumulate(map(len, files)))

  def __len__(self) -> int:
    return self.ends[-1]

  def read(self, indices):
    for i in indices:
      yield {'image': read_image(self.path(i), self.channels), 'label': self._label(i)}

  def path(self, i: int) -> Path:
    """Returns the path of an image."""
    label = self._label(i)
    name = self.files[label][i - (self.ends[label - 1] if label else 0)]
    return self.folder / self.classes[label] / os.fsdecode(bytes(name))

  def names(self):
    """Returns CLASS/FILE of each image."""
    return [
      f'{name}/{os.fsdecode(bytes(file))}'
      for name, files in zip(self.classes, self.files, strict=True)
      for file in files
    ]

  def _label(self, i: int) -> int:
    return bisect.bisect_right(self.ends, i)

  def label_values(self):
    """Returns the labels of all classes; the split may lack some."""
    return set(range(len(self.classes)))


def _named_labels(path: Path) -> list[str]:
  names = read_json(path).get('id2label')
  wanted = map(str, range(len(names) if isinstance(names, dict) else 0))
  if not isinstance(names, dict) or not names or {*names} != {*wanted}:
    raise UserError(
      f"{path} has no id2label with the labels '0', '1', ...: name the class of each label"
    )
  return [str(names[str(label)]) for label in range(len(names))]


def _class_names(folder: Path) -> list[str]:
  with reading(folder), os.scandir(folder) as entries:
    visible = [entry for entry in entries if not entry.name.startswith('.')]
  names = list[str]()
  for entry in visible:
    with reading(Path(entry.path)):
      names += [entry.name] if entry.is_dir() else []
  names.sort()
  outside = [e.name for e in visible if e.is_file() and e.name.lower().endswith(EXTENSIONS)]
  if outside or not names:
    problem = f'the image {min(outside)} in no class' if outside else 'no folders of classes'
    raise UserError(f'{folder} has {problem}: put images into a folder per class')
  return names


def _image_names(folder: Path) -> np.ndarray:
  """Returns the sorted names of the images in a folder of a class."""
  with reading(folder), os.scandir(folder) as entries:
    names = sorted(os.fsencode(e.name) for e in entries if not e.name.startswith('.'))
  extensions = tuple(map(str.encode, EXTENSIONS))
  for name in names:
    if not name.lower().endswith(extensions):
      raise UserError(
        f'{folder / os.fsdecode(name)} is no image: must end in {", ".join(EXTENSIONS)}'
      )
  if not names:
    raise UserError(f'{folder} has no images: remove this class')
  # Fixed-width bytes take less memory than a list of str.
  return np.array(names)


def read_image(path: Path, channels: int) -> UInt8[np.ndarray, 'height width channels']:
  """Reads an image file; see `decode_image`.

  Raises:
    UserError: it is no regular file, cannot be read, or is no image of 8 bits per channel.
  """
  data = read_bytes(path)
  try:
    return decode_image(data, channels)
  except UserError as error:
    raise UserError(f'{path} cannot be read: {error}') from error


def decode_image(data: bytes, channels: int) -> UInt8[np.ndarray, 'height width channels']:
  """Decodes an image, rotated by its EXIF orientation.

  Args:
    data: content of a file of any format that Pillow reads.
    channels: 3 for RGB, 1 for shades of grey.

  Raises:
    UserError: the data is no image of 8 bits per channel.
  """
  from PIL import Image, ImageOps

  with decoding(), Image.open(io.BytesIO(data)) as file:
    image = ImageOps.exif_transpose(file)
    if image.mode.startswith(('I', 'F')):
      raise UserError(f'its mode {image.mode} has more than 8 bits per channel: convert it')
    array = np.asarray(image.convert('RGB' if channels == 3 else 'L'))
  return array if channels == 3 else array[..., None]


@contextlib.contextmanager
def decoding() -> Iterator[None]:
  """Converts errors of Pillow to UserErrors, of images that are too large when decompressed too."""
  from PIL import Image

  try:
    yield
  except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
    raise UserError(f'no image, or a damaged one ({first_line(error)})') from error
