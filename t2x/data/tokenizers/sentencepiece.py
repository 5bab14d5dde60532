"""Text to tokens and back, without loss.

SentencePiece BPE and unigram (Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226; Sennrich
et al. 2016, https://arxiv.org/abs/1508.07909; Kudo 2018, https://arxiv.org/abs/1804.10959), bytes
(ByT5, https://arxiv.org/abs/2105.13626) and characters. A config is a frozen dataclass that knows
its vocabulary's size; `fit` gives the tokenizer, trained at first use and cached. All share the ids
of the special tokens: pad 0, eos 1, unk 2, bos 3, mask 4.
"""

import abc
import collections
import dataclasses
import functools
import hashlib
import io
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np
import sentencepiece
from jaxtyping import Bool, Int

from t2x.data.folders import cache_folder, fingerprint, prepare, write_folder
from t2x.data.text_sample import CHUNK, sample
from t2x.errors import UserError

__all__ = ['Bytes', 'Characters', 'SentencePiece', 'Tokenizer', 'TokenizerConfig', 'load_tokenizer']

SPECIALS = ('<pad>', '<eos>', '<unk>', '<bos>', '<mask>')
SPACE = '\u2581'


class _Special:
  """The ids of the special tokens."""

  pad_id = 0
  eos_id = 1
  unk_id = 2
  bos_id = 3
  mask_id = 4
  num_special = len(SPECIALS)
  vocab_size: int


class Tokenizer(_Special, abc.ABC):
  """A fitted tokenizer. Picklable; `decode(encode(text)) == text` where no token is unknown.

  Attributes:
    vocab_size: number of ids, the special ones included.
  """

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]:
    """Ids without special ones (but unk)."""

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """`encode` of each text."""
    return [self.encode(text) for text in texts]

  @abc.abstractmethod
  def decode(self, ids: Iterable[SupportsIndex]) -> str:
    """Text; special ids and ids outside of the vocabulary are left out."""

  @abc.abstractmethod
  def pieces(self, ids: Iterable[SupportsIndex]) -> list[str]:
    """What each id stands for, to be looked at."""

  @abc.abstractmethod
  def word_starts(self, ids: Int[np.ndarray, 'length']) -> Bool[np.ndarray, 'length']:
    """True where a word begins; white space belongs to the word after it."""

  @abc.abstractmethod
  def files(self) -> dict[str, bytes]:
    """File name -> contents; `tokenizer.json` names the kind."""

  @functools.cached_property
  def fingerprint(self) -> str:
    """Changes with anything that changes the ids."""
    digest = hashlib.sha256()
    for name, contents in sorted(self.files().items()):
      digest.update(name.encode() + b'\0' + contents)
    return digest.hexdigest()[:16]

  def save(self, folder: Path) -> None:
    """Writes the tokenizer for `load_tokenizer`."""
    write_folder(Path(folder), self._write)

  def _write(self, folder: Path) -> None:
    for name, contents in self.files().items():
      (folder / name).write_bytes(contents)

  def _kept(self, ids: Iterable[SupportsIndex]) -> list[int]:
    known = map(operator.index, ids)
    return [i for i in known if self.num_special <= i < self.vocab_size or i == self.unk_id]


class TokenizerConfig(_Special, abc.ABC):
  """What a config file says of a tokenizer.

  Attributes:
    vocab_size: number of ids of the fitted tokenizer, known before there is one.
  """

  @abc.abstractmethod
  def train(self, texts: Iterable[str]) -> Tokenizer:
    """A tokenizer made for these texts."""

  def fit(
    self,
    texts: Callable[[], Iterable[str]],
    cache: Path | None = None,
    source_fingerprint: str = '',
  ) -> Tokenizer:
    """The tokenizer of a source, trained at first use.

    Args:
      texts: gives the source's training texts.
      cache: the cache folder (default: $T2X_CACHE or ~/.cache/t2x).
      source_fingerprint: says which source it is.

    Raises:
      UserError: the vocabulary does not suit the texts.
    """
    name = f'{type(self).__name__.lower()}-{fingerprint(self, source_fingerprint)}'
    folder = (cache or cache_folder()) / 'tokenizers' / name
    prepare(folder, lambda temporary: self.train(texts())._write(temporary))
    return load_tokenizer(folder)


def load_tokenizer(folder: str | Path) -> Tokenizer:
  """The tokenizer that was saved in `folder`."""
  folder = Path(folder)
  try:
    known = json.loads((folder / 'tokenizer.json').read_text(encoding='utf-8'))
    kind = known.pop('kind')
    if kind == 'sentencepiece':
      return SentencePieceTokenizer((folder / 'sentencepiece.model').read_bytes())
    if kind == 'bytes':
      return ByteTokenizer()
    return CharacterTokenizer(known['characters'], known['vocab_size'])
  except (OSError, ValueError, KeyError) as error:
    raise UserError(f'{folder} holds no tokenizer: {error}') from error


@dataclasses.dataclass(frozen=True)
class SentencePiece(TokenizerConfig):
  """A SentencePiece model: no normalisation, white space kept, lines and indents as pieces.

  Attributes:
    vocab_size: number of ids, special ones and the 256 bytes included.
    model_type: BPE trains faster; unigram encodes faster.
    character_coverage: part of the text whose characters are ids of their own; rarer ones become
      bytes.
    byte_fallback: spells unknown characters as bytes, which makes the tokenizer lossless; without,
      they become unk.
    split_digits: makes each digit a token.
    sample_megabytes: text to train on, spread evenly over the source.
  """

  vocab_size: int
  model_type: Literal['bpe', 'unigram'] = 'bpe'
  character_coverage: float = 1.0
  byte_fallback: bool = True
  split_digits: bool = False
  sample_megabytes: float = 5.0

  def train(self, texts: Iterable[str]) -> 'SentencePieceTokenizer':
    """Trains in one thread, so that the same texts always give the same model."""
    chunks = [chunk.replace(SPACE, ' ') for chunk in sample(texts, self.sample_megabytes)]
    if not any(chunk.strip() for chunk in chunks):
      raise UserError('there is no text to train the SentencePiece tokenizer on')
    model = io.BytesIO()
    try:
      sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(chunks),
        model_writer=model,
        vocab_size=self.vocab_size,
        model_type=self.model_type,
        character_coverage=self.character_coverage,
        byte_fallback=self.byte_fallback,
        split_digits=self.split_digits,
        normalization_rule_name='identity',
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        allow_whitespace_only_pieces=True,
        pad_id=self.pad_id,
        eos_id=self.eos_id,
        unk_id=self.unk_id,
        bos_id=self.bos_id,
        pad_piece='<pad>',
        eos_piece='<eos>',
        bos_piece='<bos>',
        control_symbols=['<mask>'],
        max_sentence_length=8 * CHUNK,
        num_threads=1,
        minloglevel=2,
      )
    except (RuntimeError, ValueError, OSError) as error:
      raise _vocabulary_error(self.vocab_size, str(error)) from error
    return SentencePieceTokenizer(model.getvalue())


def _vocabulary_error(vocab_size: int, message: str) -> Exception:
  """SentencePiece's complaint in one line."""
  if limit := re.search(r'value <= (\d+)', message):
    told = f'too large for the text: at most {limit[1]}'
  elif limit := re.search(r'required_chars\. \d+ vs (\d+)', message):
    told = (
      f'too small for the characters of the text: at least {limit[1]}, '
      'or a smaller SentencePiece.character_coverage'
    )
  else:
    told = ' '.join(message.split())
  return UserError(f'SentencePiece.vocab_size = {vocab_size}: {told}')


class SentencePieceTokenizer(Tokenizer):
  """A trained SentencePiece model."""

  def __init__(self, model: bytes):
    self._model = model
    self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    self.vocab_size = self._processor.vocab_size()
    to_id, unk = self._processor.piece_to_id, self.unk_id
    ids = [to_id(f'<0x{byte:02X}>') for byte in SPACE.encode()]
    # SentencePiece writes a space as U+2581; that character itself is spelt in bytes.
    self._space_ids = [unk] if unk in ids else ids

  def __reduce__(self):
    return type(self), (self._model,)

  def encode(self, text):
    """Ids without special ones; U+2581, which SentencePiece keeps for the space, as bytes."""
    first, *rest = text.split(SPACE)
    ids = self._processor.encode(first)
    for part in rest:
      ids += self._space_ids + self._processor.encode(part)
    return ids

  def encode_batch(self, texts):
    """In as many threads as there are cores."""
    if any(SPACE in text for text in texts):
      return super().encode_batch(texts)
    return self._processor.encode(list(texts), num_threads=os.cpu_count() or 1)

  def decode(self, ids):
    """Text; bytes that are not UTF-8 become U+FFFD."""
    return self._processor.decode(self._kept(ids))

  def pieces(self, ids):
    """SentencePiece's pieces: the space is U+2581, a byte <0x..>."""
    return _with_specials(ids, self._pieces)

  @functools.cached_property
  def _pieces(self) -> list[str]:
    return [self._processor.id_to_piece(i) for i in range(self.vocab_size)]

  @functools.cached_property
  def _edges(self) -> tuple[np.ndarray, np.ndarray]:
    """By id: does the piece begin a word, and does it end one? A space alone begins a word."""
    pieces = self._pieces[self.num_special :]
    begins = [piece[:1] in (SPACE, '\n', '\t') for piece in pieces]
    ends = [piece[-1:] in ('\n', '\t') or piece == SPACE * len(piece) != SPACE for piece in pieces]
    special = [True] * self.num_special
    return np.array(special + begins), np.array(special + ends)

  def word_starts(self, ids):
    """Pieces that begin with white space, and those after a line's end or an indent."""
    begins, ends = self._edges
    starts = begins[ids]
    starts[1:] |= ends[ids[:-1]]
    starts[:1] = True
    return starts

  def files(self):
    """The model as SentencePiece writes it."""
    return {'tokenizer.json': _json(kind='sentencepiece'), 'sentencepiece.model': self._model}


@dataclasses.dataclass(frozen=True)
class Bytes(TokenizerConfig):
  """UTF-8 bytes; nothing to train."""

  vocab_size = len(SPECIALS) + 256

  def train(self, texts: Iterable[str]) -> 'ByteTokenizer':
    """The texts are not read."""
    return ByteTokenizer()


class ByteTokenizer(Tokenizer):
  """Id = 5 + byte."""

  vocab_size = Bytes.vocab_size

  def encode(self, text):
    """One id a byte of UTF-8."""
    return [byte + self.num_special for byte in text.encode()]

  def decode(self, ids):
    """Text; what is not UTF-8 becomes U+FFFD."""
    kept = bytes(i - self.num_special for i in self._kept(ids) if i != self.unk_id)
    return kept.decode(errors='replace')

  def pieces(self, ids):
    """ASCII characters, and <0x..> for other bytes."""
    characters = [chr(b) if b < 128 else f'<0x{b:02X}>' for b in range(256)]
    return _with_specials(ids, [*SPECIALS, *characters])

  def word_starts(self, ids):
    """White space after something else."""
    spaces = np.isin(ids, [byte + self.num_special for byte in b' \t\n\r'])
    return _starts_at_spaces(ids, spaces)

  def files(self):
    """Nothing but the kind."""
    return {'tokenizer.json': _json(kind='bytes')}


@dataclasses.dataclass(frozen=True)
class Characters(TokenizerConfig):
  """The most frequent Unicode characters; others become unk.

  Attributes:
    vocab_size: number of ids, special ones included; those that the text does not fill stay unused.
    sample_megabytes: text to count characters in, spread evenly over the source.
  """

  vocab_size: int
  sample_megabytes: float = 5.0

  def train(self, texts: Iterable[str]) -> 'CharacterTokenizer':
    """Counts characters; equal counts go by code point."""
    counts = collections.Counter[str]()
    for chunk in sample(texts, self.sample_megabytes):
      counts.update(chunk)
    if not counts:
      raise UserError('there is no text to find characters in')
    best = sorted(counts, key=lambda character: (-counts[character], character))
    characters = best[: max(self.vocab_size - self.num_special, 0)]
    return CharacterTokenizer(''.join(characters), self.vocab_size)


class CharacterTokenizer(Tokenizer):
  """Id = 5 + rank of the character."""

  def __init__(self, characters: str, vocab_size: int):
    self._characters, self.vocab_size = characters, vocab_size
    self._ids = {character: i + self.num_special for i, character in enumerate(characters)}
    padding = [''] * (vocab_size - self.num_special - len(characters))
    self._pieces = [*SPECIALS, *characters, *padding]

  def encode(self, text):
    """One id a character."""
    get, unk = self._ids.get, self.unk_id
    return [get(character, unk) for character in text]

  def decode(self, ids):
    """Text; unk becomes U+FFFD."""
    return ''.join('\ufffd' if i == self.unk_id else self._pieces[i] for i in self._kept(ids))

  def pieces(self, ids):
    """The characters themselves."""
    return _with_specials(ids, self._pieces)

  def word_starts(self, ids):
    """White space after something else."""
    return _starts_at_spaces(ids, self._spaces[ids])

  @functools.cached_property
  def _spaces(self) -> np.ndarray:
    return np.array([piece.isspace() for piece in self._pieces])

  def files(self):
    """The characters in order of id."""
    known: dict[str, Any] = {'characters': self._characters, 'vocab_size': self.vocab_size}
    return {'tokenizer.json': _json(kind='characters', **known)}


def _starts_at_spaces(ids: np.ndarray, spaces: np.ndarray) -> np.ndarray:
  starts = ids < len(SPECIALS)
  starts[1:] |= starts[:-1] | (spaces[1:] & ~spaces[:-1])
  starts[:1] = True
  return starts


def _with_specials(ids: Iterable[SupportsIndex], pieces: Sequence[str]) -> list[str]:
  known = [*SPECIALS, *pieces[len(SPECIALS) :]]
  return [known[i] if 0 <= i < len(known) else '<none>' for i in map(operator.index, ids)]


def _json(**known: Any) -> bytes:
  return json.dumps(known, sort_keys=True).encode()
