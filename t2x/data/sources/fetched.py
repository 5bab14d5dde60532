"""Helpers for sources: the location of fetched data, and splits by a hash of a name."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from t2x.data.prepared_folders import cache_folder
from t2x.errors import UserError

# Split -> its buckets of 100, by a hash of the name of a text.
SPLITS = {'train': range(80), 'validation': range(80, 90), 'test': range(90, 100)}


def find_data(setting: str, folder: str | None, name: str, pattern: str) -> Path:
  """Returns the first path that matches a pattern in a source's folder.

  Args:
    setting: parameter of the source that sets the folder, for the error.
    folder: folder of the data; None: the folder of `t2x data fetch`.
    name: name of the data set in `fetch`.
    pattern: path or glob, relative to the folder.

  Raises:
    UserError: no path matches.
  """
  root = Path(folder).expanduser() if folder else cache_folder() / 'downloads' / name
  matches = sorted(root.glob(pattern))
  if not matches:
    out = f' --out {root}' if folder else ''
    raise UserError(f'no {pattern} in {root}: run `t2x data fetch {name}{out}`, or set {setting}')
  return matches[0]


def split_of(name: str, splits: Mapping[str, range] = SPLITS) -> str:
  """Returns the split of a name, by its hash.

  Args:
    name: name of the text or file that contains the examples.
    splits: split -> its buckets of 100.
  """
  bucket = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], 'big') % 100
  return next(split for split, buckets in splits.items() if bucket in buckets)
