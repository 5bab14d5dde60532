"""Tokenizers that run in Hugging Face's `tokenizers` library, from model folders or trained by t2x."""

import collections
import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.external_files import read_text
from t2x.base.packages import imported
from t2x.data.tokenizers.base import Tokenizer, trim_spans
from t2x.data.tokenizers.hub_limits import check_limits
from t2x.data.tokenizers.merges import apply_merges, trace_merges
from t2x.data.tokenizers.special_tokens import SpecialTokens, Unsupported
from t2x.data.tokenizers.word_starts import WordBoundaries


def tokenizers_library() -> Any:
  """Imports the `tokenizers` package.

  Raises:
    Unsupported: it is not installed.
  """
  try:
    return imported('tokenizers', 'this tokenizer')
  except UserError as error:
    raise Unsupported(str(error)) from error


class FastTokenizer(Tokenizer):
  """A tokenizer of the `tokenizers` library."""

  kind = 'fast'

  def __init__(self, backend: str, special_tokens: SpecialTokens):
    """
    Args:
      backend: contents of the library's tokenizer.json.
      special_tokens: the special ids.
    """
    self._json, self.special_tokens = backend, special_tokens
    special_tokens.set_attributes(self)
    self._backend = tokenizers_library().Tokenizer.from_str(backend)
    self._backend.no_truncation()
    self._backend.no_padding()
    self._backend.encode_special_tokens = special_tokens.literal
    self.vocab_size = max(self._backend.get_vocab().values(), default=-1) + 1

  def __reduce__(self):
    return type(self), (self._json, self.special_tokens)

  def encode(self, text):
    """Returns the ids; in tokenizers of model folders the text may contain special tokens."""
    return self._backend.encode(text, add_special_tokens=False).ids

  def encode_batch(self, texts):
    """Encodes in one thread per core."""
    encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]

  def named_id(self, name):
    i = self._backend.token_to_id(name)
    if i is None or i not in self._backend.get_added_tokens_decoder():
      raise UserError(
        f"the tokenizer has no special token '{name}': set BPE.named, or use another name"
      )
    return int(i)

  def sample(self, text, rate, rng):
    """Applies BPE dropout at `rate`; runs in Python, about 50 microseconds per word."""
    if self._word_marker != 'bytes':
      return super().sample(text, rate, rng)
    if not rate:
      return self.encode(text)
    vocab, ranks, backend = *self._merges, self._backend
    if backend.normalizer is not None:
      text = backend.normalizer.normalize_str(text)
    words = backend.pre_tokenizer.pre_tokenize_str(text)
    pieces = (piece for word, _ in words for piece in apply_merges(word, ranks, rate, rng))
    return [vocab.get(piece, self.unk_id) for piece in pieces]

  @functools.cached_property
  def _merges(self) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """The vocabulary (piece -> id) and the merges (pair -> rank)."""
    model = json.loads(self._json)['model']
    pairs = [tuple(pair.split(' ') if isinstance(pair, str) else pair) for pair in model['merges']]
    return model['vocab'], {(first, last): i for i, (first, last) in enumerate(pairs)}

  def trace(self, chunks):
    """Replays the merges of byte-level BPE."""
    if self._word_marker != 'bytes':
      return super().trace(chunks)
    backend, (vocab, ranks) = self._backend, self._merges
    words: collections.Counter[str] = collections.Counter()
    for chunk in chunks:
      text = chunk if backend.normalizer is None else backend.normalizer.normalize_str(chunk)
      words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
    merges = [[pair] for pair in ranks]
    return trace_merges(words, merges, len(vocab) - len(merges), _decode_bytes)

  def locate(self, text):
    """Returns the ids with the offsets of the library."""
    encoding = self._backend.encode(text, add_special_tokens=False)
    return trim_spans(text, encoding.ids, encoding.offsets)

  def decode(self, ids):
    """Returns the text as the library joins it; skips special ids, including unk."""
    return self._backend.decode(self._text_ids(ids), skip_special_tokens=True)

  @functools.cached_property
  def special(self):
    """Mask over the vocabulary; also True for tokens that the library marks as special."""
    mask = super().special
    added = self._backend.get_added_tokens_decoder()
    mask[[i for i, token in added.items() if token.special]] = True
    return mask

  @functools.cached_property
  def _pieces(self):
    """The library's pieces, those of byte-level BPE decoded from UTF-8 where valid."""
    pieces = [self._backend.id_to_token(i) or '' for i in range(self.vocab_size)]
    if self._word_marker == 'bytes':
      special = self.special
      return [p if special[i] else _decode_bytes(p) for i, p in enumerate(pieces)]
    return pieces

  @functools.cached_property
  def _word_marker(self) -> str:
    """The convention by which pieces mark word boundaries: '##', '</w>', 'bytes' or '\u2581'."""
    description = json.loads(self._json)
    model = description['model']
    if model['type'] == 'WordPiece':
      return '##'
    if model.get('end_of_word_suffix'):
      return '</w>'
    return 'bytes' if 'ByteLevel' in json.dumps(description['pre_tokenizer']) else '\u2581'

  @functools.cached_property
  def _word_boundaries(self):
    special = self.special
    if self._word_marker == '##':
      continues = np.array([piece.startswith('##') for piece in self._pieces])
      return WordBoundaries(special | ~continues, special)
    if self._word_marker == '</w>':
      ends = np.array([piece.endswith('</w>') for piece in self._pieces])
      return WordBoundaries(special, special | ends)
    return super()._word_boundaries

  def files(self):
    """Returns the library's file as backend.json, and tokenizer.json with the special ids."""
    special = dataclasses.asdict(self.special_tokens)
    return {'tokenizer.json': self._description(**special), 'backend.json': self._json.encode()}

  @classmethod
  def load(cls, folder, saved):
    tokenizer = cls(read_text(folder / 'backend.json'), SpecialTokens.read(saved))
    check_limits(tokenizer._backend, str(folder))
    return tokenizer

  def hub_files(self):
    """Returns the library's tokenizer.json, and tokenizer_config.json with the special tokens."""
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
    contents = json.dumps(config, indent=2).encode()
    return {'tokenizer.json': self._json.encode(), 'tokenizer_config.json': contents}

  def prompts_only(self):
    """Returns a copy for which the library encodes one text as `prompt` does, without an end token."""
    description = json.loads(self._json)
    processor = description.get('post_processor')
    if not processor or processor['type'] != 'TemplateProcessing':
      return self
    texts = [i for i, item in enumerate(processor['single']) if 'Sequence' in item]
    processor['single'] = processor['single'][: texts[-1] + 1]
    text = self.single.index(('A', 0))
    special_tokens = dataclasses.replace(self.special_tokens, single=self.single[: text + 1])
    return FastTokenizer(json.dumps(description, ensure_ascii=False), special_tokens)


def _decode_bytes(piece: str) -> str:
  """Returns the text of a byte-level piece, or <0x..> for each byte if it is not UTF-8."""
  if any(character not in BYTES for character in piece):
    return piece
  contents = bytes(BYTES[character] for character in piece)
  try:
    return contents.decode()
  except UnicodeDecodeError:
    return ''.join(f'<0x{byte:02X}>' for byte in contents)


def _gpt2_bytes() -> Mapping[str, int]:
  """Returns GPT-2's map of characters to bytes: printable bytes map to themselves, others start at 256."""
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [byte for byte in range(256) if byte not in printable]
  return {chr(b if b in printable else 256 + others.index(b)): b for b in range(256)}


BYTES = _gpt2_bytes()
