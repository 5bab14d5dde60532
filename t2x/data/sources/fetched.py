"""What sources share: where those of fetched packages look, and a split by the name of a text."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from t2x.data.prepared_folders import cache_folder
from t2x.errors import UserError

# Parts of 100, by a hash of the name of what the examples are taken from.
SPLITS = {'train': range(80), 'validation': range(80, 90), 'test': range(90, 100)}


def find_data(setting: str, given: str | None, name: str, holds: str) -> Path:
  """The path `holds` in the folder that a source was given, or where `t2x data fetch` puts it.

  Args:
    setting: the source's parameter that names the folder, for the error.
    given: the folder; None: the cache's.
    name: of the data set, as `fetch` knows it.
    holds: relative path (or glob) of what is wanted.

  Raises:
    UserError: it is not there.
  """
  folder = Path(given).expanduser() if given else cache_folder() / 'downloads' / name
  found = sorted(folder.glob(holds))
  if not found:
    out = f' --out {folder}' if given else ''
    raise UserError(f'no {holds} in {folder}: run `t2x data fetch {name}{out}`, or set {setting}')
  return found[0]


def split_of(name: str, splits: Mapping[str, range] = SPLITS) -> str:
  """The split that a name belongs to, by a hash of it.

  Args:
    name: of what the examples are taken from.
    splits: split -> its parts of 100.
  """
  part = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], 'big') % 100
  return next(split for split, parts in splits.items() if part in parts)


def digest_of(paths: Iterable[Path]) -> str:
  """Of the names and the content of files."""
  digest = hashlib.sha256()
  for path in paths:
    digest.update(f'{path.name}\0'.encode() + hashlib.sha256(path.read_bytes()).digest())
  return digest.hexdigest()
