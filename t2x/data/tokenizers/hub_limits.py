"""Limits on tokenizers from model folders: growth of the text's length, and the largest id.

Untrusted files could otherwise exhaust the memory, e.g. by a chain of replacements of one character by ten.
"""

import base64
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from t2x.base.errors import UserError
from t2x.base.external_files import LARGE, Int, read_bytes, read_json, shown

if TYPE_CHECKING:
  from tokenizers import Tokenizer as Backend

# The largest vocabularies have one million ids.
MAX_IDS = 10_000_000
# The bound of ALBERT's normalizer is 1296.
MAX_GROWTH = 2000
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


def check_limits(backend: 'Backend', where: str) -> None:
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
  for name in ('normalizer', 'decoder', 'post_processor'):
    growth = _growth(description[name])
    if growth > MAX_GROWTH:
      raise UserError(
        f'{where}: its {name} makes a text up to {growth:.0e} times as long; '
        f'the maximum is {MAX_GROWTH:,} times'
      )


def _growth(step: Mapping[str, Any] | None) -> float:
  """Returns an upper bound of the growth of a text's length in a step of the library."""
  if step is None:
    return 1.0
  match step['type']:
    case 'Sequence':
      # The steps are in `normalizers`, `decoders` or `processors`.
      parts = (part for value in step.values() if isinstance(value, list) for part in value)
      return math.prod(map(_growth, parts))
    case 'Replace':
      # A regular expression may match the empty string between all characters.
      replaced, length = step['pattern'].get('String'), len(step['content'])
      return max(length / len(replaced), 1.0) if replaced else 1.0 + length
    case 'Prepend':
      return 1.0 + len(step['prepend'])
    case 'Precompiled':
      return _longest_replacement(base64.b64decode(step['precompiled_charsmap'] or ''))
    case 'TemplateProcessing':
      ids = [len(token['ids']) for token in step['special_tokens'].values()]
      return (len(step['single']) + len(step['pair'])) * max(ids, default=1)
    case kind:
      return GROWTH.get(kind, 1.0)


def sentencepiece_model(path: Path) -> bytes:
  """Reads a model file of SentencePiece.

  Raises:
    UserError: the file is damaged, or its normalisation exceeds the growth limit.
  """
  model = read_bytes(path)
  try:
    specs = [spec for number in (3, 5) for spec in protobuf_field(model, number)]
    tables = [table for spec in specs for table in protobuf_field(spec, 2)]
  except DecodeError as error:
    raise UserError(f'{path} is not a SentencePiece model: {error}') from error
  growth = max(map(_longest_replacement, tables), default=1.0)
  if growth > MAX_GROWTH:
    raise UserError(
      f'{path}: its normalisation replaces one character by {growth:,.0f} characters; '
      f'the maximum is {MAX_GROWTH:,}'
    )
  return model


def protobuf_field(message: bytes, number: int) -> list[bytes]:
  """Returns the values of a field with text, bytes or messages of a protocol buffer."""
  fields = UnknownFieldSet(Empty.FromString(message))
  return [f.data for f in fields if f.field_number == number and f.wire_type == 2]


def _longest_replacement(charsmap: bytes) -> float:
  """Returns the length of the longest replacement in a SentencePiece normalisation table.

  The table is the size of a trie, the trie, and zero-terminated texts.
  """
  texts = charsmap[4 + int.from_bytes(charsmap[:4], 'little') :]
  return float(max(1, *(len(text.decode('utf-8', 'replace')) for text in texts.split(b'\0'))))


def vocabulary(path: Path) -> dict[str, int]:
  """Reads a vocabulary file: piece -> id.

  Raises:
    UserError: the file is damaged.
  """
  return distinct_ids(read_json(path, LARGE), str(path))


def distinct_ids(pieces: object, where: str) -> dict[str, int]:
  """Returns a vocabulary from JSON, piece -> id; raises UserError unless its ids are distinct and in the limits."""
  is_id = Int(None, 0, MAX_IDS - 1).accepts
  ids = pieces.values() if isinstance(pieces, dict) else [None]
  if not all(map(is_id, ids)) or len(set(ids)) < len(ids):
    raise UserError(
      f'{where}: pieces must have distinct ids below {MAX_IDS:,}, not {shown(pieces)}'
    )
  return cast(dict[str, int], pieces)
