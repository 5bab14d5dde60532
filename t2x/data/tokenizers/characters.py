"""Tokenizers of bytes (ByT5, https://arxiv.org/abs/2105.13626) and of characters."""

import collections
import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Size
from t2x.data.tokenizers.base import Tokenizer, TokenizerConfig, trim_spans
from t2x.data.tokenizers.text_sample import sample

__all__ = ['Bytes', 'Characters']

# The names of the special tokens, in the order of their ids.
SPECIALS = ('<pad>', '<eos>', '<unk>', '<bos>', '<mask>')
NUM_SPECIAL = len(SPECIALS)


class ByteTokenizer(Tokenizer):
  """Tokenizer of UTF-8 bytes; the id of a byte is 5 + its value."""

  kind = 'bytes'
  vocab_size = NUM_SPECIAL + 256
  _pieces = (*SPECIALS, *(chr(b) if b < 128 else f'<0x{b:02X}>' for b in range(256)))

  def encode(self, text):
    """Returns one id per UTF-8 byte."""
    return [byte + NUM_SPECIAL for byte in text.encode()]

  def locate(self, text):
    """Returns the ids; the span of each byte is its character."""
    spans = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
    return trim_spans(text, self.encode(text), spans)

  def decode(self, ids):
    """Returns the text; invalid UTF-8 becomes U+FFFD."""
    contents = bytes(i - NUM_SPECIAL for i in self._text_ids(ids) if i != self.unk_id)
    return contents.decode(errors='replace')

  def word_starts(self, ids):
    """Returns True for the first white space after a word, and after special ids."""
    spaces = np.isin(ids, [byte + NUM_SPECIAL for byte in b' \t\n\r'])
    return _starts_at_spaces(ids, spaces)

  def files(self):
    """Returns tokenizer.json with only the kind."""
    return {'tokenizer.json': self._description()}

  @classmethod
  def load(cls, folder, saved):
    return cls()


@dataclasses.dataclass(frozen=True)
class Bytes(TokenizerConfig):
  """Tokenizer of UTF-8 bytes, without training (ByT5, https://arxiv.org/abs/2105.13626)."""

  kinds = (ByteTokenizer,)
  vocab_size = NUM_SPECIAL + 256

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """Returns the tokenizer, without reading the texts."""
    return ByteTokenizer()


class CharacterTokenizer(Tokenizer):
  """Tokenizer of Unicode characters; the id of a character is 5 + its rank by frequency."""

  kind = 'characters'

  def __init__(self, characters: str, vocab_size: int):
    self._characters, self.vocab_size = characters, vocab_size
    self._ids = {character: i + NUM_SPECIAL for i, character in enumerate(characters)}

  def encode(self, text):
    """Returns one id per character."""
    get, unk = self._ids.get, self.unk_id
    return [get(character, unk) for character in text]

  def locate(self, text):
    """Returns the ids; the span of each is its character."""
    return trim_spans(text, self.encode(text), [(i, i + 1) for i in range(len(text))])

  def decode(self, ids):
    """Returns the text; unk becomes U+FFFD."""
    return ''.join('\ufffd' if i == self.unk_id else self._pieces[i] for i in self._text_ids(ids))

  def word_starts(self, ids):
    """Returns True for the first white space after a word, and after special ids."""
    return _starts_at_spaces(ids, self._spaces[ids])

  @functools.cached_property
  def _pieces(self):
    padding = [''] * (self.vocab_size - NUM_SPECIAL - len(self._characters))
    return [*SPECIALS, *self._characters, *padding]

  @functools.cached_property
  def _spaces(self) -> np.ndarray:
    return np.array([piece.isspace() for piece in self._pieces])

  def files(self):
    """Returns tokenizer.json with the characters in the order of their ids."""
    description = self._description(characters=self._characters, vocab_size=self.vocab_size)
    return {'tokenizer.json': description}

  @classmethod
  def load(cls, folder, saved):
    return cls(saved['characters'], saved['vocab_size'])


@dataclasses.dataclass(frozen=True)
class Characters(TokenizerConfig):
  """Tokenizer of the most frequent Unicode characters; other characters become unk.

  Attributes:
    vocab_size: number of ids, including special ids. If the text has fewer characters, the last ids are
      unused. None: one id for each character of the text.
  """

  kinds = (CharacterTokenizer,)

  vocab_size: Size | None = None
  sample_megabytes: Positive = 5.0

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """Counts characters; ties are broken by code point."""
    counts = collections.Counter[str]()
    for chunk in sample(texts, self.sample_megabytes):
      counts.update(chunk)
    if not counts:
      raise UserError('there is no text to train the Characters tokenizer on')
    best = sorted(counts, key=lambda character: (-counts[character], character))
    size = NUM_SPECIAL + len(best) if self.vocab_size is None else self.vocab_size
    return CharacterTokenizer(''.join(best[: max(size - NUM_SPECIAL, 0)]), size)


def _starts_at_spaces(ids: np.ndarray, spaces: np.ndarray) -> np.ndarray:
  starts = ids < NUM_SPECIAL
  starts[1:] |= starts[:-1] | (spaces[1:] & ~spaces[:-1])
  starts[:1] = True
  return starts
