"""Limits to what other people's tokenizers may do: how often they multiply a text's length, and how large
their ids are. A chain of replacements that each make ten letters of one would fill any memory."""

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.errors import UserError
from t2x.external_files import LARGE, REQUIRED, Fields, Int, Object, read_bytes, read_json

# The largest vocabularies have one million.
MOST_IDS = 10_000_000
# Of ALBERT, which decomposes, folds, normalises and replaces, one letter can become 648.
MOST_GROWTH = 1000
# Letters that the library's own normalizers make of one, at most.
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
  """Refuses a tokenizer of the `tokenizers` library that could need much more memory than its text.

  Raises:
    UserError: with the part of tokenizer.json that is refused.
  """
  largest = max(backend.get_vocab().values(), default=0)
  if largest >= MOST_IDS:
    raise UserError(f'{where}: its vocabulary has the id {largest}, and {MOST_IDS:,} is too large')
  # Only now: the library counts to the largest id.
  described = json.loads(backend.to_str())
  steps = {
    'normalizer': _growth(described['normalizer'], 'normalizers'),
    'decoder': _growth(described['decoder'], 'decoders'),
    'post_processor': _added(described['post_processor']),
  }
  for name, growth in steps.items():
    if growth > MOST_GROWTH:
      raise UserError(
        f'{where}: its {name} makes a text up to {growth:.0e} times as long; '
        f'more than {MOST_GROWTH:,} times is not supported'
      )


def _growth(step: Mapping[str, Any] | None, parts: str) -> float:
  """How many times as long a text can become; `parts` is the field that holds those of a sequence."""
  if step is None:
    return 1.0
  kind = step['type']
  if kind == 'Sequence':
    return math.prod(_growth(part, parts) for part in step[parts])
  if kind == 'Replace':
    return max(_replaced(step['pattern'], len(step['content'])), 1.0)
  if kind == 'Prepend':
    return 1.0 + len(step['prepend'])
  if kind == 'Precompiled':
    return _longest(base64.b64decode(step['precompiled_charsmap'] or ''))
  return GROWTH.get(kind, 1.0)


def _replaced(pattern: Mapping[str, str], length: int) -> float:
  """Letters that a replacement of this length makes of one letter."""
  if 'String' in pattern:
    matched = len(pattern['String'])
    return length / matched if matched else 1.0 + length
  try:
    # What matches nothing is inserted between letters.
    return 1.0 + length if re.search(pattern['Regex'], '') else float(length)
  except re.error:
    return 1.0 + length


def _added(step: Mapping[str, Any] | None) -> float:
  """How many ids and texts a template has."""
  if step is None:
    return 1.0
  if step['type'] == 'Sequence':
    return math.prod(_added(part) for part in step['processors'])
  if step['type'] != 'TemplateProcessing':
    return 1.0

  def count(pieces: Sequence[Mapping[str, Any]]) -> int:
    names = [piece['SpecialToken']['id'] for piece in pieces if 'SpecialToken' in piece]
    special = [len(step['special_tokens'][name]['ids']) for name in names]
    return sum(special) + len(pieces)

  return float(max(count(step['single']), count(step['pair']), 1))


def sentencepiece_model(path: Path) -> bytes:
  """A file of SentencePiece.

  Raises:
    UserError: it cannot be read, or its normalization makes very many letters of one.
  """
  model = read_bytes(path)
  try:
    specs = [spec for number, spec in _messages(model) if number == 3]
    maps = [table for spec in specs for number, table in _messages(spec) if number == 2]
    growth = max(map(_longest, maps), default=1.0)
  except (IndexError, ValueError) as error:
    raise UserError(f'{path} is not a SentencePiece model: {error}') from error
  if growth > MOST_GROWTH:
    raise UserError(
      f'{path}: its normalization makes {growth:,.0f} letters of one; '
      f'more than {MOST_GROWTH:,} are not supported'
    )
  return model


def _longest(charsmap: bytes) -> float:
  """The longest replacement in a table of SentencePiece: a trie with its size before it, then texts that
  end with zero."""
  texts = charsmap[4 + int.from_bytes(charsmap[:4], 'little') :]
  return float(max(1, *(len(text.decode('utf-8', 'replace')) for text in texts.split(b'\0'))))


def _messages(message: bytes) -> Iterator[tuple[int, bytes]]:
  """Number and contents of the fields of a protocol buffer that have a length."""
  position = 0

  def number() -> int:
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
        raise ValueError('a number of more than 64 bits')

  while position < len(message):
    key = number()
    kind = key & 7
    if kind not in (0, 1, 2, 5):
      raise ValueError(f'a field of kind {kind}')
    if kind == 0:
      number()
      continue
    length = number() if kind == 2 else 8 if kind == 1 else 4
    if position + length > len(message):
      raise ValueError('it is cut off')
    if kind == 2:
      yield key >> 3, message[position : position + length]
    position += length


class Vocabulary(Object):
  """An object of pieces and their ids."""

  @property
  def wanted(self):
    return f'an object of pieces with different ids below {MOST_IDS}'

  def accepts(self, value):
    one = Int(None, 0, MOST_IDS - 1)
    known = isinstance(value, dict) and all(map(one.accepts, value.values()))
    return known and len(set(value.values())) == len(value)


def vocabulary(path: Path) -> dict[str, int]:
  """A vocabulary file, piece -> id.

  Raises:
    UserError: it holds something else.
  """
  pieces = read_json(path, LARGE)
  return Fields({'vocabulary': pieces}, {'vocabulary': Vocabulary(REQUIRED)}, str(path))[
    'vocabulary'
  ]
