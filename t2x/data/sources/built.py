"""Sources that are prepared once, as TFDS data sets (array_record)."""

import abc
import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.data.prepared_folders import cache_folder, prepare
from t2x.data.sources.base import Example, Source, require_split
from t2x.data.sources.tfds_source import DataSource, quiet_tfds, shortened

log = logging.getLogger('t2x')


class BuiltSource(Source):
  """A source that TFDS prepares in $T2X_CACHE/tfds, in a folder named by its fingerprint.

  The folder is written atomically; other settings, content or versions have another folder.
  """

  @abc.abstractmethod
  def features(self) -> dict[str, Any]:
    """Returns the TFDS features by name."""

  @abc.abstractmethod
  def generate(self) -> Mapping[str, Iterable[Example]]:
    """Generates the examples of every split."""

  def load(self, split: str) -> DataSource:
    """Returns a split, prepared at first use."""
    require_split(self, split)
    name = re.sub(r'(?<=[a-z])(?=[A-Z])', '_', type(self).__name__).lower()
    folder = cache_folder() / 'tfds' / f'{name}-{self.fingerprint()}'
    prepare(folder.absolute(), self._write)
    try:
      with quiet_tfds():
        data = DataSource(self._builder(folder).as_data_source(split), {})
        # TFDS opens files at the first read; reading now detects missing files.
        if len(data):
          data[0]
        return data
    except Exception as error:
      raise UserError(f'{folder} cannot be read ({shortened(error)}): remove it') from error

  def _builder(self, folder: Path) -> Any:
    from t2x.data.sources.builder import Prepared, SourceConfig

    config = SourceConfig(name='source', source=self)
    return Prepared(config=config, data_dir=str(folder), file_format='array_record')

  def _write(self, folder: Path) -> None:
    log.info('preparing %s', self.describe())
    with quiet_tfds():
      self._builder(folder).download_and_prepare()
    shutil.rmtree(folder / 'downloads', ignore_errors=True)
