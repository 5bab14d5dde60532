"""Digests of files, of all their bytes. Large files are hashed once for each time of change.

Modification times are not part of a digest: it is the same on every host and for every copy.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import check_regular
from t2x.base.files import write_atomically
from t2x.data.prepared_folders import cache_folder, explain_write_errors, fingerprint, is_former
from t2x.data.sources.base import FileBacked, Source, with_progress

__all__ = ['files_of', 'verify_files']

log = logging.getLogger('t2x')

# Hashes of files of more than WHOLE bytes are kept in the cache. Their fingerprints of version 1 are of SAMPLES blocks.
WHOLE = 1 << 22
BLOCK = 1 << 16
SAMPLES = 16


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
  """Converts errors of reading a file to UserErrors."""
  try:
    yield
  except (OSError, ValueError) as error:  # ValueError: the path has a null character.
    raise UserError(f'{path} cannot be read: {getattr(error, "strerror", error)}') from error


def content_digest(path: Path) -> bytes:
  """Returns a digest of a file's content.

  Raises:
    UserError: the file cannot be read.
  """
  with reading(path):
    status = path.stat()
    check_regular(path, status)
    if status.st_size <= WHOLE:
      return bytes.fromhex(_hash(path))
    if is_former():
      return _sampled_digest(path.absolute(), status.st_size, status.st_mtime_ns)
    return bytes.fromhex(_kept_hash(path.absolute(), _state(status)))


def _state(status: os.stat_result) -> tuple[int, ...]:
  """Returns what changes whenever a file is written."""
  return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


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


@functools.lru_cache(maxsize=1 << 16)
def _kept_hash(path: Path, state: tuple[int, ...]) -> str:
  """Returns the hash of a file, from the cache if the file did not change since it was hashed."""
  entries = _read_record(path)
  for entry in entries:
    if tuple(entry['state']) == state:
      return entry['sha256']
  digest = _hash(path)
  # The first entry, which `verify_files` compares with, stays.
  _write_record(path, [*entries[:1], {'state': state, 'sha256': digest}])
  return digest


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
    equal: files whose hash equals that of their first use, which is in the cache.
    new: files whose hash was not in the cache and was added.
    changed: files whose hash differs.
  """

  small: list[Path]
  equal: list[Path]
  new: list[Path]
  changed: list[Path]


def verify_files(paths: Iterable[Path]) -> Verified:
  """Hashes files and compares them with the hashes from when they were first loaded."""
  result = Verified([], [], [], [])
  for path in with_progress(list(dict.fromkeys(paths)), 'hashing files'):
    with reading(path):
      status = path.stat()
    if status.st_size <= WHOLE:
      result.small.append(path)
      continue
    digest, entries = _hash(path), _read_record(path.absolute())
    if not entries:
      _write_record(path.absolute(), [{'state': _state(status), 'sha256': digest}])
      result.new.append(path)
    else:
      same = entries[0]['sha256'] == digest
      (result.equal if same else result.changed).append(path)
  return result


def _hash(path: Path) -> str:
  with reading(path), path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _record(path: Path) -> Path:
  """Returns the file with the hashes of a file."""
  return cache_folder() / 'hashes' / f'{fingerprint(str(path))}.json'


def _write_record(path: Path, entries: list[dict[str, Any]]) -> None:
  record, text = _record(path), json.dumps({'path': str(path), 'hashes': entries})
  with explain_write_errors(record):
    record.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(record, text.encode())


def _read_record(path: Path) -> list[dict[str, Any]]:
  """Returns the state and the hash of a file at its first use and after its last change; empty if it is new."""
  file = _record(path)
  if not file.exists():
    return []
  try:
    entries = json.loads(file.read_bytes())['hashes']
    return [{'state': entry['state'], 'sha256': str(entry['sha256'])} for entry in entries]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(f'{file} is damaged ({error}): remove it') from error
