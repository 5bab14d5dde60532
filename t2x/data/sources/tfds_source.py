"""Data sets of TensorFlow Datasets (https://www.tensorflow.org/datasets), read as array_record
without TensorFlow."""

import contextlib
import dataclasses
import difflib
import importlib
import io
import logging
import os
import pickle
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2x.base.errors import UserError, first_line
from t2x.base.ranges import Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import BulkExamples, Source

__all__ = ['TFDS']

log = logging.getLogger('t2x')


class DataSource(BulkExamples):
  """A TFDS data source with text as str, labels as int and renamed fields.

  Sequences are lists. Class labels in a sequence, such as word labels, are names.
  """

  def __init__(self, data: Any, fields: Mapping[str, str]):
    self.data, self.fields = data, dict(fields)

  def __reduce__(self):
    return _unpickle, (pickle.dumps(self.data), self.fields)

  def __len__(self) -> int:
    return len(self.data)

  def read(self, indices):
    """Yields examples; several are read at once in a third of the time."""
    return map(self._example, self.data.__getitems__(indices))

  def _example(self, raw: Mapping[str, Any]) -> dict[str, Any]:
    features = self.data.dataset_info.features
    if not self.fields:
      return {name: _to_python(value, features[name]) for name, value in raw.items()}
    tops = {path if path in raw else path.split('/')[0] for path in self.fields.values()}
    plain = {name: _to_python(raw[name], features[name]) for name in tops}
    return {ours: _at(plain, theirs) for ours, theirs in self.fields.items()}

  def label_values(self):
    """Returns all numbers of the class label, also labels that do not occur in the split."""
    from tensorflow_datasets.core.features import ClassLabel

    features = self.data.dataset_info.features
    path = self.fields.get('label') if self.fields else 'label'
    if path is None or path.split('/')[0] not in features:
      return None
    feature = _at(features, path)
    return set(range(feature.num_classes)) if isinstance(feature, ClassLabel) else None


def _unpickle(data: bytes, fields: Mapping[str, str]) -> DataSource:
  with quiet_tfds():
    return DataSource(pickle.loads(data), fields)


def _at(raw: Any, path: str) -> Any:
  for name in path.split('/') if path not in raw else (path,):
    raw = raw[name]
  return raw


def _to_python(value: Any, feature: Any, in_sequence: bool = False) -> Any:
  """Converts a feature's value to Python's types.

  Args:
    value: value in NumPy's types.
    feature: TFDS feature of the value.
    in_sequence: True if the value is an item of a sequence.
  """
  if isinstance(value, Mapping):
    return {name: _to_python(item, feature[name], in_sequence) for name, item in value.items()}
  if isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype.kind in 'OS'):
    return [_to_python(item, _inner(feature), True) for item in value]
  if isinstance(value, bytes):
    return value.decode('utf-8', errors='replace')
  if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
    return _to_python(value.item(), feature, in_sequence)
  return _class_name(value, feature) if in_sequence and isinstance(value, int) else value


def _inner(feature: object) -> Any:
  from tensorflow_datasets.core.features import Sequence

  return feature.feature if isinstance(feature, Sequence) else feature


def _class_name(value: int, feature: object) -> Any:
  """Returns the name of a class label; returns other numbers, such as -1 for unknown, unchanged."""
  from tensorflow_datasets.core.features import ClassLabel

  if isinstance(feature, ClassLabel) and value in range(feature.num_classes):
    return feature.int2str(value)
  return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TFDS(Source):
  """A data set by its TFDS name, downloaded and prepared at first use.

  `load` also accepts TFDS's split syntax: 'train[:90%]'.

  Attributes:
    name: name in `tfds.builder`: 'mnist', 'wmt14_translate/de-en'.
    data_dir: data folder of TFDS; None: its default.
    fields: field of the example -> field of the data set ({'source': 'en', 'target': 'de'}). 'a/b'
      is a nested field, also in a sequence: {'answers': 'answers/text'}. Empty: the fields of the
      data set.
    split_names: split -> split of TFDS, or a slice ({'validation': 'train[90%:]'}); empty: the
      splits of the data set.
  """

  name: Text
  data_dir: Text | None = None
  fields: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
  split_names: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

  def splits(self) -> tuple[str, ...]:
    """Returns the keys of `split_names`, or the splits of the data set."""
    return tuple(self.split_names) or tuple(self._prepared().info.splits)

  def load(self, split: str) -> DataSource:
    """Returns a split, read with `as_data_source` of TFDS."""
    builder = self._prepared()
    try:
      with quiet_tfds():
        data = builder.as_data_source(self.split_names.get(split, split))
    except NotImplementedError as error:
      raise UserError(
        f'{builder.data_dir} is not in array_record format: remove it, or set another TFDS.data_dir'
      ) from error
    except ImportError as error:
      raise UserError(f"TFDS data set '{self.name}' needs a package: {error}") from error
    except Exception as error:
      names = ', '.join(builder.info.splits)
      raise UserError(
        f"TFDS data set '{self.name}', split '{split}': {shortened(error)} (splits: {names})"
      ) from error
    self._check_fields(builder.info.features)
    return DataSource(data, self.fields)

  def fingerprint(self) -> str:
    """Identifies the fields and splits, and the data set's version and sizes."""
    info = self._prepared().info
    sizes = sorted((name, s.num_examples, s.num_bytes) for name, s in info.splits.items())
    settings = (sorted(self.fields.items()), sorted(self.split_names.items()))
    return fingerprint('TFDS', info.full_name, settings, sizes)

  def _builder(self) -> Any:
    import tensorflow_datasets as tfds

    # A version also follows a colon, but begins with a digit or a star.
    if re.match(r'\w+:[A-Za-z_]', self.name):
      raise UserError(
        f"TFDS.name = '{self.name}': community data sets run third-party code and are not supported"
      )
    folder = os.path.expanduser(self.data_dir) if self.data_dir else None
    options = {'data_dir': folder, 'file_format': 'array_record'}
    try:
      with quiet_tfds():
        try:
          return tfds.builder(self.name, **options)
        except tfds.core.DatasetNotFoundError:
          _register_all()
          return tfds.builder(self.name, **options)
    except Exception as error:
      close = difflib.get_close_matches(self.name.split('/')[0], _all_names(), n=1)
      hint = f'; did you mean {close[0]!r}?' if close else ''
      raise UserError(f"TFDS.name = '{self.name}': {shortened(error)}{hint}") from error

  def _prepared(self) -> Any:
    builder = self._builder()
    with quiet_tfds():
      if builder.is_prepared():
        return builder
      log.info('preparing TFDS data set %s in %s', self.name, builder.data_dir)
      try:
        builder.download_and_prepare(file_format='array_record')
      except Exception as error:
        raise UserError(
          f"TFDS could not prepare '{self.name}' in {builder.data_dir}: {shortened(error)}"
        ) from error
    return builder

  def _check_fields(self, features: Mapping[str, object]) -> None:
    for ours, theirs in self.fields.items():
      try:
        _at(features, theirs)
      except (KeyError, TypeError) as error:
        raise UserError(
          f"TFDS.fields['{ours}'] = '{theirs}': '{self.name}' has the fields {', '.join(features)}"
        ) from error


def _register_all() -> None:
  """Imports the data sets that TFDS registers only when their package is imported."""
  import tensorflow_datasets as tfds

  for module in pkgutil.iter_modules(tfds.__path__):
    # Some need another package, such as h5py.
    with contextlib.suppress(ImportError):
      if module.ispkg and module.name not in ('core', 'scripts', 'testing'):
        importlib.import_module(f'tensorflow_datasets.{module.name}')


def _all_names() -> list[str]:
  import tensorflow_datasets as tfds

  return tfds.list_builders(with_community_datasets=False)


def shortened(error: BaseException) -> str:
  """Returns the first line of an error, or its type, shortened and without a full stop."""
  line = first_line(error) or type(error).__name__
  return textwrap.shorten(line.rstrip('.'), 300)


@contextlib.contextmanager
def quiet_tfds() -> Iterator[None]:
  """Suppresses TFDS's warnings and its output on stdout; shows progress bars only on a terminal."""
  import tensorflow_datasets as tfds

  absl = logging.getLogger('absl')
  level, terminal = absl.level, sys.stderr.isatty()
  absl.setLevel(logging.ERROR)
  if not terminal:
    tfds.disable_progress_bar()
  try:
    with contextlib.redirect_stdout(sys.stderr if terminal else io.StringIO()):
      yield
  finally:
    absl.setLevel(level)
    if not terminal:
      tfds.enable_progress_bar()
