"""Bytes (ByT5, https://arxiv.org/abs/2105.13626) and characters."""

import collections
import dataclasses
import functools
import operator
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

import numpy as np

from t2x.data.text_sample import sample
from t2x.data.tokenizers.base import Tokenizer, TokenizerConfig, located
from t2x.errors import UserError
from t2x.ranges import Positive, Size

# In the order of their ids.
SPECIALS = ('<pad>', '<eos>', '<unk>', '<bos>', '<mask>')
NUM_SPECIAL = len(SPECIALS)


class ByteTokenizer(Tokenizer):
  """Id = 5 + byte."""

  kind = 'bytes'
  vocab_size = NUM_SPECIAL + 256

  def encode(self, text):
    """One id a byte of UTF-8."""
    return [byte + NUM_SPECIAL for byte in text.encode()]

  def locate(self, text):
    """The bytes of a character have that character as their span."""
    spans = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
    return located(text, self.encode(text), spans)

  def decode(self, ids):
    """Text; what is not UTF-8 becomes U+FFFD."""
    kept = bytes(i - NUM_SPECIAL for i in self._kept(ids) if i != self.unk_id)
    return kept.decode(errors='replace')

  def pieces(self, ids):
    """ASCII characters, and <0x..> for other bytes."""
    characters = [chr(b) if b < 128 else f'<0x{b:02X}>' for b in range(256)]
    return with_specials(ids, [*SPECIALS, *characters])

  def word_starts(self, ids):
    """White space after something else."""
    spaces = np.isin(ids, [byte + NUM_SPECIAL for byte in b' \t\n\r'])
    return _starts_at_spaces(ids, spaces)

  def files(self):
    """Nothing but the kind."""
    return {'tokenizer.json': self._described()}

  @classmethod
  def load(cls, folder, known):
    """There is nothing to read."""
    return cls()


@dataclasses.dataclass(frozen=True)
class Bytes(TokenizerConfig):
  """UTF-8 bytes; nothing to train."""

  kinds = (ByteTokenizer,)
  vocab_size = NUM_SPECIAL + 256

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """The texts are not read."""
    return ByteTokenizer()


class CharacterTokenizer(Tokenizer):
  """Id = 5 + rank of the character."""

  kind = 'characters'

  def __init__(self, characters: str, vocab_size: int):
    self._characters, self.vocab_size = characters, vocab_size
    self._ids = {character: i + NUM_SPECIAL for i, character in enumerate(characters)}
    padding = [''] * (vocab_size - NUM_SPECIAL - len(characters))
    self._pieces = [*SPECIALS, *characters, *padding]

  def encode(self, text):
    """One id a character."""
    get, unk = self._ids.get, self.unk_id
    return [get(character, unk) for character in text]

  def locate(self, text):
    """A character a piece."""
    return located(text, self.encode(text), [(i, i + 1) for i in range(len(text))])

  def decode(self, ids):
    """Text; unk becomes U+FFFD."""
    return ''.join('\ufffd' if i == self.unk_id else self._pieces[i] for i in self._kept(ids))

  def pieces(self, ids):
    """The characters themselves."""
    return with_specials(ids, self._pieces)

  def word_starts(self, ids):
    """White space after something else."""
    return _starts_at_spaces(ids, self._spaces[ids])

  @functools.cached_property
  def _spaces(self) -> np.ndarray:
    return np.array([piece.isspace() for piece in self._pieces])

  def files(self):
    """The characters in order of id."""
    described = self._described(characters=self._characters, vocab_size=self.vocab_size)
    return {'tokenizer.json': described}

  @classmethod
  def load(cls, folder, known):
    """From the characters in tokenizer.json."""
    return cls(known['characters'], known['vocab_size'])


@dataclasses.dataclass(frozen=True)
class Characters(TokenizerConfig):
  """The most frequent Unicode characters; others become unk.

  Attributes:
    vocab_size: number of ids, special ones included; those that the text does not fill stay unused.
      None: one for each character of the text.
    sample_megabytes: text to count characters in, spread evenly over the source.
  """

  kinds = (CharacterTokenizer,)

  vocab_size: Size | None = None
  sample_megabytes: Positive = 5.0

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """Counts characters; equal counts go by code point."""
    counts = collections.Counter[str]()
    for chunk in sample(texts, self.sample_megabytes):
      counts.update(chunk)
    if not counts:
      raise UserError('there is no text to find characters in')
    best = sorted(counts, key=lambda character: (-counts[character], character))
    size = NUM_SPECIAL + len(best) if self.vocab_size is None else self.vocab_size
    return CharacterTokenizer(''.join(best[: max(size - NUM_SPECIAL, 0)]), size)


def _starts_at_spaces(ids: np.ndarray, spaces: np.ndarray) -> np.ndarray:
  starts = ids < NUM_SPECIAL
  starts[1:] |= starts[:-1] | (spaces[1:] & ~spaces[:-1])
  starts[:1] = True
  return starts


def with_specials(ids: Iterable[SupportsIndex], pieces: Sequence[str]) -> list[str]:
  """The pieces of ids, the special ones by their names."""
  known = [*SPECIALS, *pieces[NUM_SPECIAL:]]
  return [known[i] if 0 <= i < len(known) else '<none>' for i in map(operator.index, ids)]
