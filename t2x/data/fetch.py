"""Sample data from Debian's packages, unpacked into a folder; nothing is installed."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from t2x.data.folders import cache_folder, prepare
from t2x.errors import UserError

__all__ = ['PACKAGES', 'fetch']

PACKAGES = {
  'fashion_mnist': ('dataset-fashion-mnist',),
  'libreoffice_help': (
    'libreoffice-help-en-us',
    'libreoffice-help-de',
    'libreoffice-help-fr',
    'libreoffice-help-zh-cn',
  ),
}


def fetch(name: str, out: str | Path | None = None) -> Path:
  """Unpacks a data set's packages with `apt-get download` and `dpkg -x`. Returns the folder.

  Args:
    name: a key of `PACKAGES`.
    out: the folder; None: where the source of that name looks. One that exists is left as it is.

  Raises:
    UserError: an unknown name, no apt-get here, or its last words when it failed.
  """
  if name not in PACKAGES:
    raise UserError(f"no data set '{name}' to fetch: there are {', '.join(sorted(PACKAGES))}")
  folder = Path(out) if out else cache_folder() / 'downloads' / name
  packages = PACKAGES[name]
  if not folder.exists() and not (shutil.which('apt-get') and shutil.which('dpkg')):
    raise UserError(
      f'no apt-get here: get the Debian packages {", ".join(packages)} elsewhere, '
      f'unpack each with `dpkg -x PACKAGE {folder}` (or ar and tar)'
    )
  prepare(folder.absolute(), lambda temporary: _unpack(packages, temporary))
  return folder


def _unpack(packages: tuple[str, ...], folder: Path) -> None:
  with tempfile.TemporaryDirectory() as downloads:
    # Downloaded as root, apt-get wants a folder that its own user may write to.
    Path(downloads).chmod(0o777)
    _call(['apt-get', 'download', *packages], downloads)
    for package in sorted(Path(downloads).glob('*.deb')):
      _call(['dpkg', '-x', str(package), str(folder)], downloads)


def _call(command: list[str], folder: str) -> None:
  done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
  if done.returncode:
    said = (done.stderr.strip().splitlines() or ['it said nothing'])[-1]
    raise UserError(
      f'`{" ".join(command[:2])}` failed: {said} (`apt-get update` renews the list of packages)',
      exit_code=1,
    )
