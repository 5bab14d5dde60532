"""SentencePiece BPE and unigram (Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226; Sennrich
et al. 2016, https://arxiv.org/abs/1508.07909; Kudo 2018, https://arxiv.org/abs/1804.10959)."""

import dataclasses
import functools
import io
import os
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import numpy as np
import sentencepiece

from t2x.data.text_sample import CHUNK, sample
from t2x.data.tokenizers.base import Tokenizer, TokenizerConfig, located
from t2x.data.tokenizers.bpe_dropout import merged
from t2x.data.tokenizers.characters import with_specials
from t2x.data.tokenizers.hub_limits import sentencepiece_model
from t2x.data.tokenizers.word_starts import Words
from t2x.errors import UserError
from t2x.ranges import Positive, Range, Size

SPACE = '\u2581'


class SentencePieceTokenizer(Tokenizer):
  """A trained SentencePiece model."""

  kind = 'sentencepiece'

  def __init__(self, model: bytes):
    self._model = model
    self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    self.vocab_size = self._processor.vocab_size()
    # SentencePiece writes a space as U+2581; that character itself is spelt in bytes.
    self._space_ids = self._in_bytes(SPACE)

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

  def sample(self, text, rate, rng):
    """BPE: part `rate` of the merges left out (https://arxiv.org/abs/1910.13267). Unigram: with
    probability `rate` one of the 64 likeliest segmentations, its likelihood to the power of 0.2
    (https://arxiv.org/abs/1804.10959, section 3.2). The library draws too, but not the same in
    every process."""
    if rate == 0 or not text or SPACE in text:
      return self.encode(text)
    if self._is_bpe:
      return self._with_merges_left_out(text, rate, rng)
    if rng.random() >= rate:
      return self.encode(text)
    likeliest = self._processor.nbest_encode(text, nbest_size=64, return_type=int)
    # An unknown character is spelt alike in all of them: what its bytes weigh makes no difference.
    scores = 0.2 * np.array([self._scores[ids].sum() for ids in likeliest])
    weights = np.exp(scores - scores.max())
    return likeliest[rng.choice(len(weights), p=weights / weights.sum())]

  def _with_merges_left_out(self, text: str, rate: float, rng: np.random.Generator) -> list[int]:
    ids: list[int] = []
    # No piece goes on after a word.
    for word in re.findall(f'{SPACE}*[^{SPACE}]+|{SPACE}+$', text.replace(' ', SPACE)):
      for piece in merged(word, self._ranks, rate, rng):
        known = self._processor.piece_to_id(piece)
        spelt = [known] if known != self.unk_id else self._in_bytes(piece)
        # Of characters that are unknown one after the other the library makes one unk.
        if spelt != [self.unk_id] or ids[-1:] != [self.unk_id]:
          ids += spelt
    return ids

  def _in_bytes(self, character: str) -> list[int]:
    """A character that is no piece: the ids of its bytes, or unk where these are none either."""
    ids = [self._processor.piece_to_id(f'<0x{byte:02X}>') for byte in character.encode()]
    return [self.unk_id] if self.unk_id in ids else ids

  @functools.cached_property
  def _scores(self) -> np.ndarray:
    return np.array([self._processor.get_score(i) for i in range(self.vocab_size)])

  @functools.cached_property
  def _is_bpe(self) -> bool:
    """BPE's scores are the negative ranks of merges."""
    return bool((self._scores == np.trunc(self._scores)).all())

  @functools.cached_property
  def _ranks(self) -> dict[tuple[str, str], int]:
    """Any two strings that make a piece can be merged to it."""
    ranks = (-self._scores).astype(int).tolist()
    return {
      (piece[:k], piece[k:]): ranks[i]
      for i, piece in enumerate(self._pieces)
      if not (self.special[i] or self._processor.is_byte(i))
      for k in range(1, len(piece))
    }

  def locate(self, text):
    """The bytes of a character have that character as their span."""
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for part in text.split(SPACE):
      if start:
        ids += self._space_ids
        spans += [(start - 1, start)] * len(self._space_ids)
      found = self._processor.encode(part, return_type='offset_mapping')
      places = shared(found['pieces'], found['offsets'])
      ids += found['ids']
      spans += [(start + begin, start + end) for begin, end in places]
      start += len(part) + 1
    return located(text, ids, spans)

  def decode(self, ids):
    """Text; bytes that are not UTF-8 become U+FFFD."""
    return self._processor.decode(self._kept(ids))

  def pieces(self, ids):
    """SentencePiece's pieces: the space is U+2581, a byte <0x..>."""
    return with_specials(ids, self._pieces)

  @functools.cached_property
  def _pieces(self) -> list[str]:
    return [self._processor.id_to_piece(i) for i in range(self.vocab_size)]

  @functools.cached_property
  def _words(self) -> Words:
    return Words.of([piece.replace(SPACE, ' ') for piece in self._pieces], self.special)

  def word_starts(self, ids):
    """Pieces that begin with white space, and those after a line's end or an indent."""
    return self._words.starts(ids)

  def files(self):
    """The model as SentencePiece writes it."""
    return {'tokenizer.json': self._described(), 'sentencepiece.model': self._model}

  @classmethod
  def load(cls, folder, known):
    """From the model's file."""
    return cls(sentencepiece_model(folder / 'sentencepiece.model'))


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

  kinds = (SentencePieceTokenizer,)

  vocab_size: Size
  model_type: Literal['bpe', 'unigram'] = 'bpe'
  character_coverage: Annotated[float, Range('0 < x <= 1')] = 1.0
  byte_fallback: bool = True
  split_digits: bool = False
  sample_megabytes: Positive = 5.0

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """Trains in one thread, so that the same texts always give the same model."""
    chunks = [chunk.replace(SPACE, ' ') for chunk in sample(texts, self.sample_megabytes)]
    if not any(chunk.strip() for chunk in chunks):
      raise UserError('there is no text to train the SentencePiece tokenizer on')
    model, ids = io.BytesIO(), self.ids
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
        pad_id=ids.pad_id,
        eos_id=ids.eos_id,
        unk_id=ids.unk_id,
        bos_id=ids.bos_id,
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


def shared(pieces: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
  """Spans as SentencePiece gives them, where of a character's bytes only the last has its span."""
  found = list(spans)
  for i in range(len(found) - 2, -1, -1):
    if found[i][0] == found[i][1] and pieces[i].strip(SPACE):
      found[i] = found[i + 1]
  return found


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
