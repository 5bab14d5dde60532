"""Sample data from Debian's packages, unpacked into a folder; nothing is installed."""

import logging
import shutil
import subprocess
import tempfile
from pathlib import Path

from t2x.data.folders import cache_folder, prepare
from t2x.errors import UserError

__all__ = ['available', 'fetch']

log = logging.getLogger('t2x')

PACKAGES = {
  'fashion_mnist': ('dataset-fashion-mnist',),
  'libreoffice_help': (
    'libreoffice-help-en-us',
    'libreoffice-help-de',
    'libreoffice-help-fr',
    'libreoffice-help-zh-cn',
  ),
}


# What an unpacked folder holds.
CONTENTS = {
  'fashion_mnist': 'usr/share/datasets/fashion-mnist',
  'libreoffice_help': 'usr/share/libreoffice/help',
}


def available() -> tuple[str, ...]:
  """The names that `fetch` knows."""
  return tuple(sorted(PACKAGES))


def fetch(name: str, out: str | Path | None = None) -> Path:
  """Unpacks a data set's packages with `apt-get download` and `dpkg -x`. Returns the folder.

  The folder is filled wholly or not at all.

  Args:
    name: one of `available()`.
    out: the folder; None: where the source of that name looks. One that holds the data already is
      left as it is.

  Raises:
    UserError: an unknown name, a folder with something else in it, no apt-get here, or apt-get's
      last words when it failed.
  """
  if name not in PACKAGES:
    raise UserError(f"no data set '{name}' to fetch: there are {', '.join(available())}")
  folder = Path(out).expanduser() if out else cache_folder() / 'downloads' / name
  if (folder / CONTENTS[name]).is_dir():
    log.info('%s is there already: remove it to fetch it again', folder)
    return folder
  if folder.exists():
    if not folder.is_dir() or any(folder.iterdir()):
      raise UserError(f'{folder} holds something else: choose another folder with --out')
    folder.rmdir()
  packages = PACKAGES[name]
  if not (shutil.which('apt-get') and shutil.which('dpkg')):
    raise UserError(
      f'no apt-get here: get the Debian packages {", ".join(packages)} elsewhere, '
      f'unpack each with `dpkg -x PACKAGE.deb {folder}` (or `ar x` and `tar xf data.tar.*`)'
    )
  log.info('fetching %s into %s', ', '.join(packages), folder)
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
