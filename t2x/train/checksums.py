"""Checksums of a folder's files, which tell a damaged checkpoint from a good one."""

import json
import zlib
from pathlib import Path

__all__ = ['CHECKSUMS', 'damage_of', 'write_checksums']

CHECKSUMS = 'checksums.json'
# Written by Orbax while a checkpoint is moved to its place, thus after the checksums.
UNCHECKED = (CHECKSUMS, '_CHECKPOINT_METADATA')


def write_checksums(folder: Path) -> None:
  """Notes size and CRC-32 of every file in `folder`."""
  sums = {str(path.relative_to(folder)): _checksum(path) for path in _files(folder)}
  (folder / CHECKSUMS).write_text(json.dumps(sums))


def _files(folder: Path) -> list[Path]:
  return [path for path in folder.rglob('*') if path.is_file() and path.name not in UNCHECKED]


def _checksum(path: Path) -> list[int]:
  """[size in bytes, CRC-32]."""
  size, crc = 0, 0
  with path.open('rb') as file:
    while block := file.read(1 << 22):
      size, crc = size + len(block), zlib.crc32(block, crc)
  return [size, crc]


def damage_of(folder: Path) -> str | None:
  """What is wrong with a folder's files; None: nothing."""
  try:
    sums = json.loads((folder / CHECKSUMS).read_bytes())
    for name, expected in sums.items():
      found = _checksum(folder / name)
      if found != expected:
        what = 'content' if found[0] == expected[0] else f'{found[0]} of {expected[0]} bytes:'
        return f'{name}: {what} not as written'
  except (OSError, ValueError, AttributeError) as error:
    return str(error) or type(error).__name__
  return None
