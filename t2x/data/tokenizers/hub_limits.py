"""Limits on tokenizers from model folders: growth of the text's length, and the largest id.

Untrusted files could otherwise exhaust the memory, e.g. by a chain of replacements of one character by ten.
"""

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import LARGE, REQUIRED, Fields, Int, Object, read_bytes, read_json

# The largest vocabularies have one million ids.
MAX_IDS = 10_000_000
# The normalizer of ALBERT can turn one character into 648.
MAX_GROWTH = 1000
# The maximum number of characters that each normalizer of the library makes of one.
GROWTH = {
  'BertNormalizer': 6.0,
  'ByteLevel': 4.0,
  'Lowercase': 3.0,
  'NFC': 3.0,
  'NFD': 4.0,
  'NFKC': 18.0,
  'NFKD': 18.0,
}


def check_limits(backend: Any, where: str) -> None:
  """Raises UserError if a tokenizer of the `tokenizers` library exceeds the limits.

  Args:
    backend: the tokenizer.
    where: its file or folder, for messages.
  """
  largest = max(backend.get_vocab().values(), default=0)
  if largest >= MAX_IDS:
    raise UserError(f'{where}: its vocabulary has the id {largest}; ids must be below {MAX_IDS:,}')
  # Only after the check of ids: to_str counts up to the largest id.
  description = json.loads(backend.to_str())
  steps = {
    'normalizer': _growth(description['normalizer'], 'normalizers'),
    'decoder': _growth(description['decoder'], 'decoders'),
    'post_processor': _template_size(description['post_processor']),
  }
  for name, growth in steps.items():
    if growth > MAX_GROWTH:
      raise UserError(
        f'{where}: its {name} makes a text up to {growth:.0e} times as long; '
        f'the maximum is {MAX_GROWTH:,} times'
      )


def _growth(step: Mapping[str, Any] | None, parts: str) -> float:
  """Returns an upper bound of the growth of a text's length; `parts` is the field with the sub-steps."""
  if step is None:
    return 1.0
  kind = step['type']
  if kind == 'Sequence':
    return math.prod(_growth(part, parts) for part in step[parts])
  if kind == 'Replace':
    return max(_replacement_growth(step['pattern'], len(step['content'])), 1.0)
  if kind == 'Prepend':
    return 1.0 + len(step['prepend'])
  if kind == 'Precompiled':
    return _longest_replacement(base64.b64decode(step['precompiled_charsmap'] or ''))
  return GROWTH.get(kind, 1.0)


def _replacement_growth(pattern: Mapping[str, str], length: int) -> float:
  """Returns the characters that a replacement of `length` characters makes of one, at most."""
  if 'String' in pattern:
    matched = len(pattern['String'])
    return length / matched if matched else 1.0 + length
  try:
    # A pattern that matches the empty string is inserted between all characters.
    return 1.0 + length if re.search(pattern['Regex'], '') else float(length)
  except re.error:
    return 1.0 + length


def _template_size(step: Mapping[str, Any] | None) -> float:
  """Returns the number of ids and texts of a post-processor's template."""
  if step is None:
    return 1.0
  if step['type'] == 'Sequence':
    return math.prod(_template_size(part) for part in step['processors'])
  if step['type'] != 'TemplateProcessing':
    return 1.0

  def count(pieces: Sequence[Mapping[str, Any]]) -> int:
    names = [piece['SpecialToken']['id'] for piece in pieces if 'SpecialToken' in piece]
    special = [len(step['special_tokens'][name]['ids']) for name in names]
    return sum(special) + len(pieces)

  return float(max(count(step['single']), count(step['pair']), 1))


def sentencepiece_model(path: Path) -> bytes:
  """Reads a model file of SentencePiece.

  Raises:
    UserError: the file is damaged, or its normalisation exceeds the growth limit.
  """
  model = read_bytes(path)
  try:
    specs = [spec for number, spec in _parse_message(model) if number == 3]
    maps = [table for spec in specs for number, table in _parse_message(spec) if number == 2]
    growth = max(map(_longest_replacement, maps), default=1.0)
  except (IndexError, ValueError) as error:
    raise UserError(f'{path} is not a SentencePiece model: {error}') from error
  if growth > MAX_GROWTH:
    raise UserError(
      f'{path}: its normalisation replaces one character by {growth:,.0f} characters; '
      f'the maximum is {MAX_GROWTH:,}'
    )
  return model


def _longest_replacement(charsmap: bytes) -> float:
  """Returns the length of the longest replacement in a SentencePiece normalisation table.

  The table is the size of a trie, the trie, and zero-terminated texts.
  """
  texts = charsmap[4 + int.from_bytes(charsmap[:4], 'little') :]
  return float(max(1, *(len(text.decode('utf-8', 'replace')) for text in texts.split(b'\0'))))


def _parse_message(message: bytes) -> Iterator[tuple[int, bytes]]:
  """Yields number and contents of the length-delimited fields of a protocol buffer."""
  position = 0

  def read_varint() -> int:
    nonlocal position
    value = shift = 0
    while True:
      byte = message[position]
      position += 1
      value |= (byte & 127) << shift
      shift += 7
      if byte < 128:
        return value
      if shift > 63:
        raise ValueError('it has a number of more than 64 bits')

  while position < len(message):
    key = read_varint()
    wire_type = key & 7
    if wire_type not in (0, 1, 2, 5):
      raise ValueError(f'it has a field of unknown wire type {wire_type}')
    if wire_type == 0:
      read_varint()
      continue
    length = read_varint() if wire_type == 2 else 8 if wire_type == 1 else 4
    if position + length > len(message):
      raise ValueError('it is truncated')
    if wire_type == 2:
      yield key >> 3, message[position : position + length]
    position += length


class Vocabulary(Object):
  """A JSON object of pieces with distinct ids."""

  @property
  def wanted(self):
    return f'a JSON object of pieces with distinct ids below {MAX_IDS}'

  def accepts(self, value):
    integer = Int(None, 0, MAX_IDS - 1)
    has_ids = isinstance(value, dict) and all(map(integer.accepts, value.values()))
    return has_ids and len(set(value.values())) == len(value)


def vocabulary(path: Path) -> dict[str, int]:
  """Reads a vocabulary file: piece -> id.

  Raises:
    UserError: the file is damaged.
  """
  pieces = read_json(path, LARGE)
  return Fields({'vocabulary': pieces}, {'vocabulary': Vocabulary(REQUIRED)}, str(path))[
    'vocabulary'
  ]
