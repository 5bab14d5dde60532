"""Python's own standard library as text: always there, nothing to download."""

import dataclasses
import functools
import hashlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example, Source, require_split
from t2x.data.sources.fetched import split_of
from t2x.errors import UserError

# Other people's code, tests (large and repetitive) and what is generated.
LEFT_OUT = {
  '__pycache__',
  'dist-packages',
  'ensurepip',
  'idlelib',
  'lib2to3',
  'pydoc_data',
  'site-packages',
  'test',
  'tests',
}
# Parts of 100, by a hash of the file's name.
SPLITS = {'train': range(90), 'validation': range(90, 95), 'test': range(95, 100)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandardLibrary(Source):
  """The source files of this Python's standard library: `text` and `name`.

  A file belongs wholly to train (90 %), validation (5 %) or test (5 %), by a hash of its name.
  Another version of Python has other files, and another fingerprint.

  Attributes:
    topics: adds the prose of `pydoc_data.topics` to the train split.
  """

  topics: bool = True

  def splits(self) -> tuple[str, ...]:
    """train, validation, test."""
    return tuple(SPLITS)

  def load(self, split: str) -> Sequence[Example]:
    """The files of a split, sorted by name."""
    require_split(self, split)
    examples = [
      {'text': text, 'name': name} for name, text in _files() if split_of(name, SPLITS) == split
    ]
    if self.topics and split == 'train':
      from pydoc_data.topics import topics

      examples += [
        {'text': text, 'name': f'topics/{name}'} for name, text in sorted(topics.items())
      ]
    return examples

  def fingerprint(self) -> str:
    """Of the settings and the texts, which differ between versions of Python."""
    digest = hashlib.sha256()
    for split in self.splits():
      for example in self.load(split):
        digest.update(example['name'].encode() + b'\0' + example['text'].encode() + b'\0')
    return fingerprint(self, digest.hexdigest())


@functools.lru_cache(maxsize=1)
def _files() -> tuple[tuple[str, str], ...]:
  root = Path(sysconfig.get_path('stdlib'))
  found = []
  for path in sorted(root.rglob('*.py')):
    name = path.relative_to(root)
    if LEFT_OUT.isdisjoint(name.parts):
      text = path.read_bytes().decode('utf-8', errors='ignore')
      if text:
        found.append((name.as_posix(), text))
  if not found:
    raise UserError(f'no Python sources in {root}: use TextFiles on a folder of your own')
  return tuple(found)
