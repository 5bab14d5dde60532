"""Sources whose examples are prepared once, as JSON lines in the cache folder."""

import abc
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from t2x.base.errors import UserError
from t2x.data.prepared_folders import cache_folder, prepare
from t2x.data.sources.base import Example, Source, require_split
from t2x.data.sources.files import JsonLines

log = logging.getLogger('t2x')


class BuiltSource(Source):
  """A source that is prepared in $T2X_CACHE/built, in a folder named by its fingerprint.

  The folder is written atomically; other settings, content or versions have another folder.
  """

  @abc.abstractmethod
  def generate(self) -> Mapping[str, Iterable[Example]]:
    """Generates the examples of every split, with values of JSON's types."""

  def load(self, split: str) -> Sequence[Example]:
    """Returns a split, prepared at first use."""
    require_split(self, split)
    name = re.sub(r'(?<=[a-z])(?=[A-Z])', '_', type(self).__name__).lower()
    folder = (cache_folder() / 'built' / f'{name}-{self.fingerprint()}').absolute()
    prepare(folder, self._write)
    try:
      return JsonLines(train=str(folder / f'{split}.jsonl')).load('train')
    except UserError as error:
      raise UserError(f'{folder} cannot be read ({error}): remove it') from error

  def _write(self, folder: Path) -> None:
    log.info('preparing %s', self.describe())
    for split, examples in self.generate().items():
      with (folder / f'{split}.jsonl').open('w', encoding='utf-8') as file:
        file.writelines(json.dumps(example, ensure_ascii=False) + '\n' for example in examples)
