"""Tokenizers of the `tokenizers` library: other people's `tokenizer.json`, and WordPiece and BPE
trained here."""

import dataclasses
import functools
import json
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2x.data.tokenizers.base import Tokenizer, located
from t2x.data.tokenizers.bpe_dropout import merged
from t2x.data.tokenizers.hub_limits import check_limits
from t2x.data.tokenizers.special_tokens import Known, Unsupported
from t2x.data.tokenizers.word_starts import Words
from t2x.external_files import read_text


def tokenizers_library() -> Any:
  """The `tokenizers` package.

  Raises:
    Unsupported: it is not installed.
  """
  try:
    import tokenizers
  except ImportError as error:
    message = "this tokenizer needs the package 'tokenizers': pip install 't2x[hub]'"
    raise Unsupported(message) from error
  return tokenizers


class FastTokenizer(Tokenizer):
  """A tokenizer of the `tokenizers` library."""

  kind = 'fast'

  def __init__(self, backend: str, known: Known):
    """
    Args:
      backend: what the library's tokenizer.json holds.
      known: its special ids.
    """
    self._json, self.known = backend, known
    known.tell(self)
    self._backend = tokenizers_library().Tokenizer.from_str(backend)
    self._backend.no_truncation()
    self._backend.no_padding()
    self._backend.encode_special_tokens = known.literal
    self.vocab_size = max(self._backend.get_vocab().values(), default=-1) + 1

  def __reduce__(self):
    return type(self), (self._json, self.known)

  def encode(self, text):
    """Ids; what is spelt as a special token is one, in other people's tokenizers."""
    return self._backend.encode(text, add_special_tokens=False).ids

  def encode_batch(self, texts):
    """In as many threads as there are cores."""
    found = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in found]

  def sample(self, text, rate, rng):
    """BPE dropout: part `rate` of the merges left out. In Python, some 50 microseconds a word."""
    if self._spelling != 'bytes':
      return super().sample(text, rate, rng)
    if not rate:
      return self.encode(text)
    vocab, ranks, backend = *self._merges, self._backend
    if backend.normalizer is not None:
      text = backend.normalizer.normalize_str(text)
    words = backend.pre_tokenizer.pre_tokenize_str(text)
    pieces = (piece for word, _ in words for piece in merged(word, ranks, rate, rng))
    return [vocab.get(piece, self.unk_id) for piece in pieces]

  @functools.cached_property
  def _merges(self) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Piece -> id, and pair -> rank."""
    model = json.loads(self._json)['model']
    pairs = [tuple(pair.split(' ') if isinstance(pair, str) else pair) for pair in model['merges']]
    return model['vocab'], {(first, last): i for i, (first, last) in enumerate(pairs)}

  def locate(self, text):
    """As the library tells it."""
    encoding = self._backend.encode(text, add_special_tokens=False)
    return located(text, encoding.ids, encoding.offsets)

  def decode(self, ids):
    """Text as the library joins it; special tokens, unk among them, are left out."""
    return self._backend.decode(self._kept(ids), skip_special_tokens=True)

  @functools.cached_property
  def special(self):
    """Those that the library calls special as well."""
    found = super().special
    added = self._backend.get_added_tokens_decoder()
    found[[i for i, token in added.items() if token.special]] = True
    return found

  def pieces(self, ids):
    """Pieces of bytes as text where they are UTF-8, others as the library has them."""
    known = self._pieces
    return [known[i] if 0 <= i < len(known) else '<none>' for i in map(operator.index, ids)]

  @functools.cached_property
  def _pieces(self) -> list[str]:
    pieces = [self._backend.id_to_token(i) or '' for i in range(self.vocab_size)]
    if self._spelling == 'bytes':
      special = self.special
      return [p if special[i] else _text(p) for i, p in enumerate(pieces)]
    return pieces

  @functools.cached_property
  def _spelling(self) -> str:
    """How pieces tell where words are: '##', '</w>', 'bytes' or '\u2581'."""
    described = json.loads(self._json)
    model = described['model']
    if model['type'] == 'WordPiece':
      return '##'
    if model.get('end_of_word_suffix'):
      return '</w>'
    return 'bytes' if 'ByteLevel' in json.dumps(described['pre_tokenizer']) else '\u2581'

  @functools.cached_property
  def _words(self) -> Words:
    pieces, special = self._pieces, self.special
    if self._spelling == '##':
      begins = np.array([not piece.startswith('##') for piece in pieces])
      return Words(special | begins, special)
    if self._spelling == '</w>':
      return Words(special, special | np.array([piece.endswith('</w>') for piece in pieces]))
    return Words.of([piece.replace('\u2581', ' ') for piece in pieces], special)

  def word_starts(self, ids):
    """As the pieces tell it: '##' before those inside of a word, white space before a word."""
    return self._words.starts(ids)

  def files(self):
    """The library's own file and the special ids."""
    known = dataclasses.asdict(self.known)
    return {'tokenizer.json': self._described(**known), 'backend.json': self._json.encode()}

  @classmethod
  def load(cls, folder, known):
    """From the library's own file."""
    tokenizer = cls(read_text(folder / 'backend.json'), Known.read(known, str(folder)))
    check_limits(tokenizer._backend, str(folder))
    return tokenizer

  def hub_files(self):
    """tokenizer.json as the library has it, and which tokens are special."""
    roles: dict[str, int | None] = {
      role: getattr(self, f'{role}_id') for role in ('pad', 'eos', 'unk', 'bos', 'mask')
    }
    first, last = self.single[0][0], self.single[-1][0]
    if isinstance(first, int) and isinstance(last, int):
      roles |= {'cls': first, 'sep': last}
    config = {'tokenizer_class': 'PreTrainedTokenizerFast'}
    for role, i in roles.items():
      if i is not None:
        config[f'{role}_token'] = self._backend.id_to_token(i)
    described = json.dumps(config, indent=2).encode()
    return {'tokenizer.json': self._json.encode(), 'tokenizer_config.json': described}


def _text(piece: str) -> str:
  """The text of a piece of bytes, or <0x..> of each byte where it is not UTF-8."""
  if any(character not in BYTES for character in piece):
    return piece
  contents = bytes(BYTES[character] for character in piece)
  try:
    return contents.decode()
  except UnicodeDecodeError:
    return ''.join(f'<0x{byte:02X}>' for byte in contents)


def _bytes() -> Mapping[str, int]:
  """GPT-2's character for each byte: itself where it prints, else the next one from 256 on."""
  shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [byte for byte in range(256) if byte not in shown]
  return {chr(b if b in shown else 256 + others.index(b)): b for b in range(256)}


BYTES = _bytes()
