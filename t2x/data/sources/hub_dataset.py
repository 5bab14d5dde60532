"""Data sets of the Hugging Face Hub, read with its package `datasets`."""

import contextlib
import dataclasses
import functools
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from t2x.base.errors import UserError
from t2x.base.external_files import read_bytes
from t2x.base.packages import imported
from t2x.base.ranges import Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import (
  BulkExamples,
  ClassSource,
  Example,
  FileBacked,
  require_split,
  select,
)
from t2x.data.sources.digests import digest_of
from t2x.data.sources.image_folder import decode_image
from t2x.data.sources.tfds_source import shortened

if TYPE_CHECKING:
  from datasets import Dataset

__all__ = ['HubDataset']


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubDataset(FileBacked, ClassSource):
  """A data set by its name on the Hugging Face Hub, or in a folder.

  The examples are memory-mapped. Class labels are integers, but names in a sequence, such as word
  labels. Needs the extra `data`.

  Attributes:
    name: folder written by `save_to_disk`, folder of Parquet or other files that `load_dataset`
      reads, or a name on the Hub ('stanfordnlp/imdb'), which is downloaded at first use.
    config: configuration of the data set; None: its only one.
    fields: field of the example -> column ({'source': 'en', 'target': 'de'}); empty: all columns.
    split_names: split -> split of the data set; empty: its splits. A data set saved without splits
      is 'train'.
    channels: number of channels of `image`: 3 converts images to RGB, 1 to shades of grey; None:
      there are no images.
  """

  packages = ('datasets',)

  name: Text
  config: Text | None = None
  fields: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
  split_names: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
  channels: Literal[1, 3] | None = None

  def splits(self) -> tuple[str, ...]:
    """Returns the keys of `split_names`, or the splits of the data set."""
    return tuple(self.split_names) or tuple(self._open())

  def load(self, split: str) -> 'HubExamples':
    """Returns a split. Checks the columns and the first example now.

    Raises:
      UserError: the data set cannot be read, or lacks a split or a column.
    """
    require_split(self, split)
    data = self._split(split)
    missing = sorted({*self.fields.values()} - {*data.column_names})
    if missing:
      raise UserError(
        f"HubDataset.fields names the column '{missing[0]}', but '{self.name}' has "
        f'{", ".join(map(repr, data.column_names))}'
      )
    if self.fields:
      data = data.select_columns(sorted({*self.fields.values()}))
    examples = HubExamples(self, split, data)
    examples.check()
    return examples

  def class_names(self) -> tuple[str, ...]:
    """Returns the names of the class label; none for other labels."""
    label = self.load(self.splits()[0]).class_label
    return () if label is None else tuple(label.names)

  def fingerprint(self) -> str:
    """Identifies the settings, and the content of the data set by samples."""
    settings = sorted(self.fields.items()), self.channels
    splits = [(name, self._split(name)) for name in self.splits()]
    contents = [(name, len(data), digest_of(_files(data))) for name, data in splits]
    return fingerprint('HubDataset', settings, contents)

  def files(self) -> list[Path]:
    """Returns the Arrow files of all splits."""
    return [path for split in self.splits() for path in _files(self._split(split))]

  def _split(self, split: str) -> Any:
    data, name = self._open(), self.split_names.get(split, split)
    if name not in data:
      raise UserError(
        f"HubDataset.split_names['{split}'] = '{name}': '{self.name}' has {', '.join(data)}"
      )
    return data[name]

  def _open(self) -> Mapping[str, Any]:
    return _load(self.name, self.config)


class HubExamples(BulkExamples):
  """A split of a data set, with renamed columns."""

  def __init__(self, source: HubDataset, split: str, data: 'Dataset'):
    """
    Args:
      source: names the fields.
      split: name of the split, for messages.
      data: `datasets.Dataset` with the columns that are used.
    """
    self.source, self.split = source, split
    # Columns of images, which are decoded here.
    self.images = {name for name in data.column_names if _is(data.features[name], 'Image')}
    for name in sorted(self.images):
      data = data.cast_column(name, type(data.features[name])(decode=False))
    self.data = data

  def check(self) -> None:
    """Raises a UserError unless the first example and the setting of channels are valid."""
    if not len(self):
      raise UserError(f"the split '{self.split}' of {self.source.describe()} is empty")
    if bool(self.images) != (self.source.channels is not None):
      raise UserError(
        f'{self.source.describe()} has images: set HubDataset.channels to 3 or 1'
        if self.images
        else f'{self.source.describe()} has no images: remove HubDataset.channels'
      )
    self[0]

  def __len__(self) -> int:
    return len(self.data)

  def read(self, indices):
    columns = self.data[indices if isinstance(indices, range) else list(indices)]
    for row, i in enumerate(indices):
      try:
        yield self._example({name: values[row] for name, values in columns.items()})
      except UserError as error:
        raise UserError(f"'{self.source.name}', split {self.split}, row {i}: {error}") from error

  def _example(self, record: dict[str, Any]) -> Example:
    for name, value in record.items():
      if name in self.images:
        record[name] = self._image(value)
      elif isinstance(value, list) and (label := _label_of(self.data.features[name])) is not None:
        record[name] = [label.int2str(item) if item >= 0 else item for item in value]
    return select(record, self.source.fields, 'HubDataset')

  def _image(self, value: Mapping[str, Any] | None) -> Any:
    if value is None:
      raise UserError('the image is missing')
    data = value['bytes'] or read_bytes(Path(value['path']))
    return decode_image(data, self.source.channels or 3)

  @property
  def class_label(self) -> Any:
    """The feature of `label`; None if its values are no numbers of classes."""
    column = self.source.fields.get('label') if self.source.fields else 'label'
    feature = self.data.features.get(column)
    return feature if _is(feature, 'ClassLabel') else None

  def label_values(self):
    """Returns all numbers of the class label, also labels that do not occur in the split."""
    label = self.class_label
    return None if label is None else set(range(label.num_classes))


def _is(feature: object, name: str) -> bool:
  return type(feature).__name__ == name


def _label_of(feature: object) -> Any:
  """Returns the class label of a feature that is a list of them, or None."""
  inner = getattr(feature, 'feature', None)
  return inner if _is(inner, 'ClassLabel') else None


def _files(data: 'Dataset') -> list[Path]:
  return [Path(file['filename']) for file in data.cache_files]


@functools.lru_cache(maxsize=8)
def _load(name: str, config: str | None) -> Mapping[str, Any]:
  """Opens a data set: split -> `datasets.Dataset`."""
  datasets = imported('datasets', 'HubDataset')
  folder = Path(name).expanduser()
  if name.startswith(('/', '.', '~')) and not folder.is_dir():
    raise UserError(f"HubDataset.name = '{name}' is not a folder (current folder: {Path.cwd()})")
  saved = (folder / 'dataset_dict.json').exists() or (folder / 'state.json').exists()
  if saved and config is not None:
    raise UserError(f"HubDataset.config = '{config}': the saved data set {folder} has none")
  try:
    with _quiet(datasets):
      if saved:
        data = datasets.load_from_disk(str(folder))
      else:
        data = datasets.load_dataset(str(folder) if folder.is_dir() else name, config)
  except Exception as error:
    raise UserError(f"HubDataset.name = '{name}': {shortened(error)}") from error
  return {'train': data} if isinstance(data, datasets.Dataset) else dict(data)


@contextlib.contextmanager
def _quiet(datasets: types.ModuleType) -> Iterator[None]:
  """Shows progress bars only on a terminal."""
  if sys.stderr.isatty():
    yield
    return
  datasets.disable_progress_bars()
  try:
    yield
  finally:
    datasets.enable_progress_bars()
