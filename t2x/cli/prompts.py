"""The prompts that `t2x generate` reads, and the file that it writes."""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from t2x.errors import UserError

# Where it was given, for errors, and its text.
Prompt = tuple[str, str]


def told_prompts(texts: Sequence[str]) -> list[Prompt]:
  """The prompts of the command line.

  Raises:
    UserError: a text is not valid Unicode.
  """
  return [_checked(f'--prompt {number}', text) for number, text in enumerate(texts, 1)]


def read_prompts(path: str) -> list[Prompt]:
  """The prompts of a file of JSON lines: objects with a "prompt".

  Lines end with LF or CRLF, and with nothing else: U+2028 may stand in a JSON string.

  Raises:
    UserError: the file cannot be read, has no lines, or a line has no prompt.
  """
  try:
    content = Path(path).read_bytes().removeprefix(b'\xef\xbb\xbf')
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error
  lines = content.split(b'\n')
  if not lines[-1].strip():
    lines.pop()
  if not lines:
    raise UserError(f'{path} is empty: write a JSON object with a "prompt" per line')
  return [_parsed(f'{path}:{number}', line) for number, line in enumerate(lines, 1)]


def _parsed(where: str, line: bytes) -> Prompt:
  try:
    found = json.loads(line.decode())
  except UnicodeDecodeError as error:
    raise UserError(f'{where}: not UTF-8 (byte {error.start} of the line)') from error
  except (ValueError, RecursionError) as error:
    raise UserError(f'{where}: not JSON ({error}): write {{"prompt": "..."}}') from error
  if not isinstance(found, dict) or not isinstance(found.get('prompt'), str):
    raise UserError(f'{where}: not a JSON object with a text under "prompt"')
  return _checked(where, found['prompt'])


def _checked(where: str, text: str) -> Prompt:
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise UserError(f'{where}: half of a surrogate pair at character {error.start}') from error
  return where, text


def check_output(path: str) -> None:
  """Raises UserError where no file can be written to `path`."""
  folder = Path(path).parent
  if Path(path).is_dir():
    raise UserError(f'--output {path} is a folder: name a file')
  if not folder.is_dir():
    raise UserError(f'--output {path}: there is no folder {folder}')
  if not os.access(folder, os.W_OK):
    raise UserError(f'--output {path}: the folder {folder} is not writable')


@contextlib.contextmanager
def output_file(path: str) -> Iterator[IO[str]]:
  """A text file that takes the place of `path` when it is complete; a failure leaves the old one.

  Pipes and devices are written to directly.

  Raises:
    UserError: it cannot be written.
  """
  place = Path(path)
  try:
    if place.exists() and not place.is_file():
      with place.open('w', encoding='utf-8') as file:
        yield file
      return
    place = place.resolve()  # A link stays, and what it points to is replaced.
    temporary = place.with_name(f'{place.name}.{uuid.uuid4().hex[:8]}.tmp')
    try:
      with temporary.open('w', encoding='utf-8') as file:
        yield file
      os.replace(temporary, place)
    finally:
      temporary.unlink(missing_ok=True)
  except OSError as error:
    raise UserError(f'--output {path} cannot be written: {error.strerror}', 1) from error
