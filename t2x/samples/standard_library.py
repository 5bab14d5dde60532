"""Python's standard library as text, which needs no download."""

import dataclasses
import functools
import hashlib
import os
import sysconfig
from pathlib import Path

from t2x.base.errors import UserError
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.held_out import split_of
from t2x.samples.fetched import Sample

__all__ = ['StandardLibrary']

# Third-party code, tests (large and repetitive) and generated files.
EXCLUDED = {
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
# Split -> its buckets of 100, by a hash of the file's name.
SPLITS = {'train': range(90), 'validation': range(90, 95), 'test': range(95, 100)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandardLibrary(Sample):
  """The source files of the running Python's standard library, with `text` and `name`.

  A hash of its name assigns each file to train (90 %), validation (5 %) or test (5 %). Another
  version of Python has other files and another fingerprint.

  Attributes:
    topics: adds the prose of `pydoc_data.topics` to the train split.
  """

  topics: bool = True

  def examples(self, split):
    """Yields the files of a split, sorted by name."""
    yield from (
      {'text': t, 'name': name} for name, t in _files() if split_of(name, SPLITS) == split
    )
    if self.topics and split == 'train':
      from pydoc_data.topics import topics

      for name, text in sorted(topics.items()):
        yield {'text': text, 'name': f'topics/{name}'}

  def fingerprint(self) -> str:
    """Identifies the settings and the texts, which differ between versions of Python."""
    digest = hashlib.sha256()
    for split in self.splits():
      for example in self.examples(split):
        digest.update(example['name'].encode() + b'\0' + example['text'].encode() + b'\0')
    return fingerprint(self, digest.hexdigest())


@functools.lru_cache(maxsize=1)
def _files() -> tuple[tuple[str, str], ...]:
  root, paths, files = Path(sysconfig.get_path('stdlib')), [], []
  for folder, subfolders, names in os.walk(root):
    # Not searched, because site-packages may have tens of thousands of folders.
    subfolders[:] = set(subfolders) - EXCLUDED
    paths += [Path(folder, name) for name in names if name.endswith('.py')]
  for path in sorted(paths):
    text = path.read_bytes().decode('utf-8', errors='ignore')
    if text:
      files.append((path.relative_to(root).as_posix(), text))
  if not files:
    raise UserError(f'no Python sources in {root}: use TextFiles with another folder')
  return tuple(files)
