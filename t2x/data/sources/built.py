"""Our own sources that are worth preparing once, as TFDS builders (array_record)."""

import abc
import dataclasses
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from t2x.data.folders import cache_folder, prepare
from t2x.data.sources.base import Example, Source, require_split
from t2x.data.sources.tfds_source import DataSource, first_line, quiet_tfds
from t2x.errors import UserError

__all__ = ['BuiltSource']

log = logging.getLogger('t2x')


class BuiltSource(Source):
  """A source that TFDS writes into $T2X_CACHE/tfds, in a folder named by its fingerprint.

  The folder is whole or not there; other settings, content or versions make another one.
  """

  @abc.abstractmethod
  def features(self) -> dict[str, Any]:
    """TFDS features by name."""

  @abc.abstractmethod
  def generate(self) -> Mapping[str, Iterable[Example]]:
    """The examples of every split, made anew."""

  def load(self, split: str) -> DataSource:
    """A split, prepared at first use."""
    require_split(self, split)
    name = re.sub(r'(?<=[a-z])(?=[A-Z])', '_', type(self).__name__).lower()
    folder = cache_folder() / 'tfds' / f'{name}-{self.fingerprint()}'
    prepare(folder.absolute(), self._write)
    try:
      with quiet_tfds():
        data = DataSource(self._builder(folder).as_data_source(split), {})
        # Files are opened at the first read: one now tells whether they are there.
        if len(data):
          data[0]
        return data
    except Exception as error:
      raise UserError(f'{folder} cannot be read ({first_line(error)}): remove it') from error

  def _builder(self, folder: Path) -> tfds.core.DatasetBuilder:
    config = SourceConfig(name='source', source=self)
    return Prepared(config=config, data_dir=str(folder), file_format='array_record')

  def _write(self, folder: Path) -> None:
    log.info('preparing %s', self.describe())
    with quiet_tfds():
      self._builder(folder).download_and_prepare()
    shutil.rmtree(folder / 'downloads', ignore_errors=True)


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
    generated = self.builder_config.source.generate()
    return {split: self._generate_examples(examples) for split, examples in generated.items()}

  def _generate_examples(self, examples: Iterable[Example]) -> Iterator[tuple[int, Example]]:
    yield from enumerate(examples)
