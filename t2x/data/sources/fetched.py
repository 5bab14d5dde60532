"""The location of fetched data."""

from pathlib import Path

from t2x.base.errors import UserError
from t2x.data.prepared_folders import cache_folder


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
