"""Digests of files. Fingerprints use the size and samples of the content; `t2x data verify` all bytes.

Modification times are not part of a digest: it is the same on every host and for every copy.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.data.prepared_folders import cache_folder, fingerprint, prepare
from t2x.data.sources.base import FileBacked, Source, with_progress

__all__ = ['files_of', 'verify_files']

log = logging.getLogger('t2x')

# Files of up to WHOLE bytes are read entirely, of others SAMPLES blocks.
WHOLE = 1 << 22
BLOCK = 1 << 16
SAMPLES = 16


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
  """Converts errors of reading a file to UserErrors."""
  try:
    yield
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error


def content_digest(path: Path) -> bytes:
  """Returns a digest of a file's content if it has at most 4 MiB.

  Otherwise returns a digest of its size and of 16 evenly spaced blocks of 64 KiB, with the first
  and the last. A change of equal size between the blocks is found by `verify_files` only.

  Raises:
    UserError: the file cannot be read.
  """
  with reading(path):
    status = path.stat()
    if status.st_size <= WHOLE:
      return bytes.fromhex(_hash(path))
    return _sampled_digest(path.absolute(), status.st_size, status.st_mtime_ns)


# Cached, because a process asks for the fingerprint of a source several times.
@functools.lru_cache(maxsize=1 << 16)
def _sampled_digest(path: Path, size: int, changed: int) -> bytes:
  digest = hashlib.sha256(f'{size} {BLOCK} {SAMPLES}\0'.encode())
  with path.open('rb') as file:
    for i in range(SAMPLES):
      file.seek((size - BLOCK) * i // (SAMPLES - 1))
      digest.update(file.read(BLOCK))
  return digest.digest()


def digest_of(paths: Iterable[Path]) -> str:
  """Returns a digest of the names and the content of files."""
  digest = hashlib.sha256()
  for path in paths:
    digest.update(f'{path.name}\0'.encode() + content_digest(path))
  return digest.hexdigest()


def keep_hashes(paths: Iterable[Path]) -> None:
  """Hashes files of which `content_digest` reads samples, unless their hashes are in the cache.

  Sources call it when they load files, so that the hash is of the content that is prepared.
  """
  missing = [path for path in paths if _is_sampled(path) and not _record(path).exists()]
  for path in with_progress(missing, 'hashing files'):
    _keep(path, _hash(path))


def files_of(source: object) -> Iterator[Path]:
  """Yields the files that a source, or the sources in its settings, are read from."""
  if isinstance(source, Mapping):
    source = list(source.values())
  if isinstance(source, list | tuple):
    for item in source:
      yield from files_of(item)
  elif isinstance(source, Source) and dataclasses.is_dataclass(source):
    if isinstance(source, FileBacked):
      yield from source.files()
    for field in dataclasses.fields(source):
      yield from files_of(getattr(source, field.name))


@dataclasses.dataclass(frozen=True)
class Verified:
  """Files by the result of `verify_files`.

  Attributes:
    small: files of at most 4 MiB: a change of their content changes the fingerprint.
    equal: files whose hash equals the hash in the cache.
    new: files whose hash was not in the cache and was added.
    changed: files whose hash differs, but whose size and samples do not.
  """

  small: list[Path]
  equal: list[Path]
  new: list[Path]
  changed: list[Path]


def verify_files(paths: Iterable[Path]) -> Verified:
  """Hashes files and compares them with the hashes from when they were first loaded."""
  result = Verified([], [], [], [])
  for path in with_progress(list(dict.fromkeys(paths)), 'hashing files'):
    if not _is_sampled(path):
      result.small.append(path)
      continue
    digest = _hash(path)
    if not _record(path).exists():
      _keep(path, digest)
      result.new.append(path)
    else:
      same = _read_record(path)['sha256'] == digest
      (result.equal if same else result.changed).append(path)
  return result


def _is_sampled(path: Path) -> bool:
  with reading(path):
    return path.stat().st_size > WHOLE


def _hash(path: Path) -> str:
  with reading(path), path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _record(path: Path) -> Path:
  """Returns the folder of a file's hash: for one name and one digest of samples."""
  return cache_folder() / 'hashes' / fingerprint(path.name, content_digest(path).hex())


def _keep(path: Path, digest: str) -> None:
  record = {'sha256': digest, 'path': str(path.absolute())}
  prepare(_record(path), lambda folder: (folder / 'hash.json').write_text(json.dumps(record)))


def _read_record(path: Path) -> dict[str, Any]:
  file = _record(path) / 'hash.json'
  try:
    record = json.loads(file.read_bytes())
    return {'sha256': record['sha256']}
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(f'{file} is damaged ({error}): remove {file.parent}') from error
