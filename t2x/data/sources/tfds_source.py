"""Any data set of TensorFlow Datasets, read as array_record without TensorFlow; and our own sources
that need preparation, as TFDS builders."""

import abc
import contextlib
import dataclasses
import functools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from t2x.data.folders import cache_folder, fingerprint
from t2x.data.sources.base import Example, Source
from t2x.errors import UserError

__all__ = ['TFDS', 'BuiltSource', 'DataSource']


class DataSource(Sequence):
  """A TFDS data source with text as str, labels as int and fields under our names."""

  def __init__(self, data: Sequence[Mapping[str, Any]], fields: Mapping[str, str]):
    self.data, self.fields = data, dict(fields)

  def __len__(self) -> int:
    return len(self.data)

  def __getitem__(self, index):
    """The example at `index`."""
    raw = self.data[int(index)]
    names = self.fields or {name: name for name in raw}
    missing = [name for name in names.values() if name not in raw]
    if missing:
      raise UserError(f'no field {missing} in the data set: it has {sorted(raw)}')
    return {ours: _plain(raw[theirs]) for ours, theirs in names.items()}


def _plain(value: Any) -> Any:
  if isinstance(value, bytes):
    return value.decode('utf-8', errors='replace')
  if isinstance(value, np.ndarray) and value.ndim == 0:
    return _plain(value.item())
  return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TFDS(Source):
  """A data set by its TFDS name, prepared at first use.

  Attributes:
    name: as in `tfds.builder`: 'mnist', 'wmt14_translate/de-en'.
    data_dir: where TFDS keeps data; None: its own default.
    fields: our name -> the data set's ({'source': 'en', 'target': 'de'}); empty: as they are.
    split_names: our split -> one of TFDS's, slices included ({'validation': 'train[90%:]'}); empty:
      the data set's own splits.
  """

  name: str
  data_dir: str | None = None
  fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
  split_names: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def _builder(self) -> tfds.core.DatasetBuilder:
    try:
      return tfds.builder(self.name, data_dir=self.data_dir, file_format='array_record')
    except Exception as error:
      first = (str(error).strip().splitlines() or [type(error).__name__])[0]
      raise UserError(f"TFDS.name = '{self.name}': {first}") from error

  def splits(self) -> tuple[str, ...]:
    """`split_names`, or the data set's own."""
    return tuple(self.split_names) or tuple(self._prepared().info.splits)

  def _prepared(self) -> tfds.core.DatasetBuilder:
    builder = self._builder()
    if not builder.is_prepared():
      try:
        with _told_on_stderr():
          builder.download_and_prepare(file_format='array_record')
      except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
          f"TFDS could not prepare '{self.name}' in {builder.data_dir}: {first}"
        ) from error
    return builder

  def load(self, split: str) -> DataSource:
    """A split, through TFDS's own `as_data_source`."""
    builder = self._prepared()
    try:
      data = builder.as_data_source(self.split_names.get(split, split))
    except NotImplementedError as error:
      raise UserError(
        f'{builder.data_dir} is not in array_record format: remove it or set another TFDS.data_dir'
      ) from error
    return DataSource(data, self.fields)

  def fingerprint(self) -> str:
    """Of the settings, the data set's version and its sizes."""
    info = self._prepared().info
    sizes = sorted((name, s.num_examples, s.num_bytes) for name, s in info.splits.items())
    return fingerprint(self, info.full_name, sizes)


class BuiltSource(Source):
  """One of our own sources that is worth preparing once: TFDS writes it, as array_record, into
  $T2X_CACHE/tfds, in a folder named by its fingerprint."""

  @abc.abstractmethod
  def features(self) -> dict[str, Any]:
    """TFDS features by name."""

  @abc.abstractmethod
  def generate(self, split: str) -> Iterator[Example]:
    """The examples of a split, made anew."""

  def load(self, split: str) -> DataSource:
    """A split, prepared at first use."""
    return DataSource(_prepare(self, str(cache_folder() / 'tfds')).as_data_source(split), {})


@dataclasses.dataclass(kw_only=True)
class SourceConfig(tfds.core.BuilderConfig):
  """A builder config that carries the source it builds."""

  source: Any = None


class Prepared(tfds.core.GeneratorBasedBuilder):
  """The TFDS builder of every `BuiltSource`: its config is the source."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self) -> tfds.core.DatasetInfo:
    features = tfds.features.FeaturesDict(self.builder_config.source.features())
    return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

  def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Example]]]:
    source = self.builder_config.source
    return {split: self._generate_examples(split) for split in source.splits()}

  def _generate_examples(self, split: str) -> Iterator[tuple[int, Example]]:
    yield from enumerate(self.builder_config.source.generate(split))


@functools.lru_cache(maxsize=8)
def _prepare(source: BuiltSource, data_dir: str) -> tfds.core.DatasetBuilder:
  name = f'{type(source).__name__.lower()}-{source.fingerprint()}'
  Path(data_dir).mkdir(parents=True, exist_ok=True)
  with _told_on_stderr():
    builder = Prepared(
      config=SourceConfig(name=name, source=source), data_dir=data_dir, file_format='array_record'
    )
    if not builder.is_prepared():
      builder.download_and_prepare()
  return builder


@contextlib.contextmanager
def _told_on_stderr() -> Iterator[None]:
  """Keeps TFDS's words off stdout, its progress bars to terminals, its warnings to itself."""
  logging.getLogger('absl').setLevel(logging.ERROR)
  if not sys.stderr.isatty():
    tfds.disable_progress_bar()
  with contextlib.redirect_stdout(sys.stderr):
    yield
