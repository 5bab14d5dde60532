"""Prompts of `t2x generate`."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.external_files import read_bytes

# (place for error messages, text)
Prompt = tuple[str, str]


def prompts_from_texts(texts: Sequence[str]) -> list[Prompt]:
  """Returns the prompts of the command line.

  Raises:
    UserError: a text is not valid Unicode.
  """
  return [check_text(f'--prompt {number}', text) for number, text in enumerate(texts, 1)]


def read_prompts(path: str) -> list[Prompt]:
  """Reads prompts from the lines of a text file (.txt, .tsv), or from a JSON lines file of objects with a "prompt"; or
  returns the paths of the files in a folder and its folders, without hidden ones.

  Lines end with LF or CRLF. Other line separators, such as U+2028, may occur in JSON strings.

  Raises:
    UserError: the file cannot be read, has no lines, or a line has no prompt; or the folder has no files.
  """
  if os.path.isdir(path):
    files = sorted(file for file in Path(path).rglob('*') if file.is_file())
    names = [file.relative_to(path).parts for file in files]
    shown = [
      file for file, parts in zip(files, names, strict=True) if not any(p[0] == '.' for p in parts)
    ]
    if not shown:
      raise UserError(f'{path} has no files')
    return [check_text(str(file), str(file)) for file in shown]
  content = read_bytes(Path(path)).removeprefix(b'\xef\xbb\xbf')
  lines = content.split(b'\n')
  if not lines[-1].strip():
    lines.pop()
  if not lines:
    raise UserError(f'{path} is empty: write one JSON object per line, {{"prompt": "..."}}')
  parse = _line if path.endswith(('.txt', '.tsv')) else _parse_prompt
  return [parse(f'{path}:{number}', line) for number, line in enumerate(lines, 1)]


def _line(where: str, line: bytes) -> Prompt:
  try:
    return where, line.decode().removesuffix('\r')
  except UnicodeDecodeError as error:
    raise UserError(f'{where}: not UTF-8 (byte {error.start} of the line)') from error


def _parse_prompt(where: str, line: bytes) -> Prompt:
  try:
    value = json.loads(line.decode())
  except UnicodeDecodeError as error:
    raise UserError(f'{where}: not UTF-8 (byte {error.start} of the line)') from error
  except (ValueError, RecursionError) as error:
    raise UserError(f'{where}: not JSON ({error}): write {{"prompt": "..."}}') from error
  if not isinstance(value, dict) or not isinstance(value.get('prompt'), str):
    raise UserError(f'{where}: not a JSON object with a string under "prompt"')
  return check_text(where, value['prompt'])


def check_text(where: str, text: str) -> Prompt:
  """Returns a text with its place; raises UserError if it is not valid Unicode."""
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise UserError(f'{where}: unpaired surrogate at character {error.start}') from error
  return where, text
