"""Images with the boxes of their objects, in the files of COCO (https://cocodataset.org/#format-data)."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from t2x.base.errors import UserError
from t2x.base.external_files import read_json, shown
from t2x.base.ranges import Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import BulkExamples, ClassSource, FileBacked
from t2x.data.sources.digests import content_digest, digest_of
from t2x.data.sources.file_source import LocalSource
from t2x.data.sources.image_folder import SAMPLED, read_image
from t2x.data.sources.subset import spread

__all__ = ['CocoImages']

# Maximum size of a file of annotations; those of COCO's train split have 448 MB.
LIMIT = 1 << 31


@dataclasses.dataclass(frozen=True, kw_only=True)
class CocoImages(LocalSource, ClassSource, FileBacked):
  """Images with `image` uint8 [height, width, channels], `boxes` (left, top, width and height in pixels), `labels` and
  `crowd` (boxes around groups), by the id of the image.

  Labels are the positions of the categories of the train split by id. Images are decoded when they are used,
  in their own sizes.

  Attributes:
    train: JSON file of annotations of the split.
    validation: JSON file of the split; None: no such split.
    test: JSON file of the split; None: no such split.
    folders: split -> folder of its images.
    channels: 3 converts images to RGB, 1 to shades of grey.
  """

  folders: Mapping[str, Text] = dataclasses.field(hash=False)
  channels: Literal[1, 3] = 3

  def load(self, split: str) -> 'CocoExamples':
    """Returns the images of a split, of which the annotations are in memory.

    Raises:
      UserError: a file is not in the format of COCO, or has a category that the train split lacks.
    """
    path, data = self._read(split)
    labels = {category['id']: i for i, category in enumerate(_categories(*self._read('train')))}
    if split not in self.folders:
      raise UserError(
        f"CocoImages.folders has no '{split}': set it to the folder of the images of {path}"
      )
    folder = Path(self.folders[split]).expanduser()
    return CocoExamples(folder, _examples(path, data, labels), self.channels)

  def class_names(self) -> list[str]:
    """Returns the names of the categories."""
    return [category['name'] for category in _categories(*self._read('train'))]

  def fingerprint(self) -> str:
    """Identifies the annotations, and the content of 64 images of each split."""
    digests = []
    for split in self.splits():
      examples = self.load(split)
      sampled = spread(min(SAMPLED, len(examples)), len(examples))
      paths = [examples.folder / examples.images[i]['file_name'] for i in sampled]
      digests.append((split, content_digest(self._path(split)).hex(), digest_of(paths)))
    return fingerprint('CocoImages', self.channels, digests)

  def files(self) -> list[Path]:
    """Returns the files of annotations."""
    return [self._path(split) for split in self.splits()]

  def _path(self, split: str) -> Path:
    return Path(self.setting(split)[1])

  def _read(self, split: str) -> tuple[Path, Mapping[str, Any]]:
    path = self._path(split)
    return path, _annotations(path)


class CocoExamples(BulkExamples):
  """Images with their objects."""

  chunk = 16

  def __init__(self, folder: Path, images: list[dict[str, Any]], channels: int):
    """
    Args:
      folder: folder of the images.
      images: `file_name` and the fields of the objects of each.
      channels: number of channels.
    """
    self.folder, self.images, self.channels = folder, images, channels

  def __len__(self) -> int:
    return len(self.images)

  def read(self, indices):
    for i in indices:
      fields = dict(self.images[i])
      path = self.folder / fields.pop('file_name')
      yield {'image': read_image(path, self.channels), **fields}


@functools.lru_cache(maxsize=4)
def _annotations(path: Path) -> Mapping[str, Any]:
  data = read_json(path, LIMIT)
  for name in ('images', 'annotations', 'categories'):
    if not isinstance(data.get(name), list):
      raise UserError(
        f"{path} has no list '{name}': give a file of boxes in the format of COCO, such as instances_train2017.json"
      )
  return data


def _categories(path: Path, data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
  """Returns the categories by id."""
  try:
    return sorted(data['categories'], key=lambda category: category['id'])
  except (KeyError, TypeError) as error:
    raise UserError(f"{path} has a category without 'id': give each an id and a name") from error


def _examples(
  path: Path, data: Mapping[str, Any], labels: Mapping[int, int]
) -> list[dict[str, Any]]:
  """Returns file name, boxes, labels and crowd of each image, by id."""
  images: dict[int, dict[str, Any]] = {}
  sizes: dict[int, tuple[float, float]] = {}
  where = 'images'
  try:
    for image in sorted(data['images'], key=lambda image: image['id']):
      number, name = image['id'], image['file_name']
      where = f'image {shown(number)}'
      if number in images:
        raise UserError('another image has the same id')
      if not isinstance(name, str) or not name.isprintable() or not name:
        raise UserError(f'its file_name is {shown(name)}, not the name of a file')
      images[number] = {'file_name': name, 'boxes': [], 'labels': [], 'crowd': []}
      sizes[number] = image.get('width', math.inf), image.get('height', math.inf)
    for place, item in enumerate(data['annotations']):
      where = f'annotation {shown(item["id"]) if "id" in item else f"at place {place}"}'
      image = images[item['image_id']]
      image['boxes'].append(_box(item['bbox'], *sizes[item['image_id']]))
      image['labels'].append(labels[item['category_id']])
      if item.get('iscrowd', 0) not in (0, 1):
        raise UserError(f'its iscrowd is {shown(item["iscrowd"])}, not 0 or 1')
      image['crowd'].append(bool(item.get('iscrowd', 0)))
  except UserError as error:
    raise UserError(f'{path}: {where}: {error}') from error
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise UserError(
      f'{path}: {where} lacks a field, or its image or category: {error!r} is missing or invalid'
    ) from error
  return list(images.values())


def _box(values: Any, width: float, height: float) -> list[float]:
  """Checks a box against the size of its image; a pixel beyond the edges may be due to rounding."""
  is_list = isinstance(values, list) and len(values) == 4
  if not is_list or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
    raise UserError(f'its bbox is {shown(values)}, not [left, top, width, height]')
  left, top, *sides = box = [float(value) for value in values]
  if not all(map(math.isfinite, box)) or min(sides) < 0:
    raise UserError(f'its bbox is {shown(values)}: sides must be finite and not negative')
  if left < -1 or top < -1 or left + sides[0] > width + 1 or top + sides[1] > height + 1:
    raise UserError(
      f'its bbox {shown(values)}, [left, top, width, height], is not within its image of {width} x {height} pixels'
    )
  return box
