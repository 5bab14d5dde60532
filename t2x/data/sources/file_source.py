"""Sources of local files and folders: their splits, paths and fingerprints."""

import abc
import contextlib
import dataclasses
import glob
import gzip
import hashlib
import io
import logging
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from t2x.base.errors import UserError
from t2x.base.packages import imported
from t2x.base.ranges import Text
from t2x.data.prepared_folders import cache_folder, fingerprint, prepare
from t2x.data.sources.base import FileBacked, Source
from t2x.data.sources.digests import content_digest, reading

log = logging.getLogger('t2x')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalSource(Source):
  """Examples on a local file system, by split.

  Attributes:
    train: path of the split.
    validation: path of the split; None: no such split.
    test: path of the split; None: no such split.
  """

  train: Text
  validation: Text | None = None
  test: Text | None = None

  def splits(self) -> tuple[str, ...]:
    return tuple(name for name in ('train', 'validation', 'test') if getattr(self, name))

  def setting(self, split: str) -> tuple[str, str]:
    """Returns the full name and the value of a split's setting, with `~` expanded.

    Raises:
      UserError: the split is not set.
    """
    name = f'{type(self).__name__}.{split}'
    if split not in self.splits():
      raise UserError(f"{name} is not set: there is no split '{split}'")
    return name, str(Path(getattr(self, split)).expanduser())


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource(LocalSource, FileBacked):
  """Examples in files, by split.

  Attributes:
    train: path or glob.
    validation: path or glob; None: no such split.
    test: path or glob; None: no such split.
  """

  # Usual extension, for messages.
  extension: ClassVar[str] = 'txt'

  def fingerprint(self) -> str:
    """Identifies the settings and the names and content of the files, but not their folder.

    Of a file of more than 4 MiB, the size and samples of the content are read.
    """
    digest = hashlib.sha256()
    for split in self.splits():
      for path in self.paths(split):
        digest.update(f'{split} {path.name}\0'.encode() + content_digest(path))
    return fingerprint(type(self).__name__, self._settings(), digest.hexdigest())

  def files(self) -> list[Path]:
    """Returns the files of all splits."""
    return [path for split in self.splits() for path in self.paths(split)]

  @abc.abstractmethod
  def _settings(self) -> object:
    """Returns the settings that change how a file is read."""

  def paths(self, split: str) -> list[Path]:
    """Returns the files of a split, sorted.

    Raises:
      UserError: the split is not set, or matches no file.
    """
    setting, pattern = self.setting(split)
    # An existing path that contains brackets is not a pattern.
    matches = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
    paths = [path for path in map(Path, matches) if path.is_file()]
    if not paths and matches and not Path(pattern).is_dir():
      raise UserError(f"{setting} = '{pattern}' is not a regular file")
    if not paths and Path(pattern).is_dir():
      raise UserError(
        f"{setting} = '{pattern}' is a folder: set a pattern such as "
        f"'{pattern}/**/*.{self.extension}'"
      )
    if not paths:
      raise UserError(f"{setting} = '{pattern}' matches no file (current folder: {Path.cwd()})")
    return paths


class DataFile(NamedTuple):
  """A file of a source.

  Attributes:
    path: the path that the user sees in messages.
    data: the path that is read: `path`, or that of its decompressed copy.
  """

  path: Path
  data: Path


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[io.BufferedReader]:
  """Opens a file to read its bytes; raises a UserError if that fails."""
  with reading(path), path.open('rb') as file:
    yield file


# Extensions of files that are not text, and what to do with them.
NO_TEXT = {
  **dict.fromkeys(('.parquet', '.pq'), 'use @Parquet'),
  '.arrow': 'use @HubDataset with the folder that contains it',
  **dict.fromkeys(('.bz2', '.xz', '.lz4', '.br', '.Z'), 'compress it as .gz or .zst instead'),
  **dict.fromkeys(('.zip', '.tar', '.tgz', '.7z', '.rar'), 'unpack it'),
}


def decompress(path: Path) -> DataFile:
  """Returns a file, and its decompressed copy in the cache folder if it ends in .gz or .zst.

  Compressed files have no random access, so they are decompressed once.

  Raises:
    UserError: the file is not text, is damaged, or needs a package.
  """
  if path.suffix in NO_TEXT:
    raise UserError(f'{path} is not a text file: {NO_TEXT[path.suffix]}')
  if path.suffix not in ('.gz', '.zst'):
    return DataFile(path, path)
  folder = cache_folder() / 'decompressed' / fingerprint('file', *identity(path))
  prepare(folder.absolute(), lambda temporary: _decompress(path, temporary / path.stem))
  return DataFile(path, folder / path.stem)


def identity(path: Path) -> tuple[str, int, int]:
  """Returns what identifies the content of a file on this machine: path, size, time of change."""
  with reading(path):
    status = path.stat()
  return str(path.absolute()), status.st_size, status.st_mtime_ns


def _decompress(path: Path, output: Path) -> None:
  log.info('decompressing %s', path)
  with open_file(path) as file, output.open('wb') as out:
    try:
      if path.suffix == '.gz':
        shutil.copyfileobj(gzip.GzipFile(fileobj=file), out, 1 << 20)
      else:
        _decompress_zstd(path, file, out)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
      raise UserError(f'{path} is damaged ({error}): copy or compress it again') from error


def _decompress_zstd(path: Path, file: BinaryIO, out: BinaryIO) -> None:
  zstandard = imported('zstandard', str(path))
  # Frame by frame, because zstandard's streams end without an error in an incomplete frame.
  decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
  frame = None
  try:
    while block := file.read(1 << 18):
      while block:
        frame = frame or decompressor.decompressobj()
        out.write(frame.decompress(block))
        block, frame = (frame.unused_data, None) if frame.eof else (b'', frame)
  except zstandard.ZstdError as error:
    raise EOFError(str(error)) from error
  if frame is not None:
    raise EOFError('it ends in the middle of a frame')
