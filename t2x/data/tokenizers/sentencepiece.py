"""SentencePiece (Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226): BPE (Sennrich et al. 2016,
https://arxiv.org/abs/1508.07909) and unigram (Kudo 2018, https://arxiv.org/abs/1804.10959)."""

import collections
import dataclasses
import functools
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Range, Size
from t2x.data.tokenizers.base import SPACE, Tokenizer, TokenizerConfig, trim_spans
from t2x.data.tokenizers.hub_limits import sentencepiece_model
from t2x.data.tokenizers.merges import apply_merges, trace_merges
from t2x.data.tokenizers.text_sample import CHUNK, sample

__all__ = ['SentencePiece']

Span = tuple[int, int]


class SentencePieceModel(Tokenizer):
  """The pieces of a SentencePiece model, and texts with ids of their own.

  Args:
    model: contents of the model file.
  """

  def __init__(self, model: bytes):
    import sentencepiece

    self._model = model
    self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

  def _add(self, texts: Mapping[str, Sequence[int]]) -> None:
    """Gives ids to texts, which are not passed to the model."""
    self._texts = texts
    longest_first = sorted(texts, key=len, reverse=True)
    any_text = '|'.join(map(re.escape, longest_first)) or r'\b\B'  # Or no text.
    self._pattern = re.compile(f'({any_text})')

  @functools.cached_property
  def _pieces(self):
    return [self._processor.id_to_piece(i) for i in range(self._processor.vocab_size())]

  def _locate(self, text: str) -> tuple[list[int], Sequence[Span]]:
    """Returns the model's ids and spans of a text."""
    encoding = self._processor.encode(text, return_type='offset_mapping')
    return self._ids(encoding), _fill_byte_spans(encoding['pieces'], encoding['offsets'])

  def _ids(self, encoding: Mapping[str, Any]) -> list[int]:
    return encoding['ids']

  def locate(self, text):
    """Returns the ids; the span of each byte token is its character."""
    ids: list[int] = []
    spans: list[Span] = []
    start = 0
    # Every second part is one of the texts with ids.
    for i, part in enumerate(self._pattern.split(text)):
      if i % 2:
        part_ids = self._texts[part]
        part_spans: Sequence[Span] = [(0, len(part))] * len(part_ids)
      else:
        part_ids, part_spans = self._locate(part)
      ids += part_ids
      spans += [(start + begin, start + end) for begin, end in part_spans]
      start += len(part)
    return trim_spans(text, ids, spans)


class SentencePieceTokenizer(SentencePieceModel):
  """A model that t2x has trained. SentencePiece writes a space as U+2581, so U+2581 is encoded as bytes."""

  kind = 'sentencepiece'

  def __init__(self, model: bytes):
    super().__init__(model)
    self.vocab_size = self._processor.vocab_size()
    self._add({SPACE: self._byte_ids(SPACE)})

  def __reduce__(self):
    return type(self), (self._model,)

  def encode(self, text):
    """Returns the ids; encodes U+2581 as bytes."""
    first, *rest = text.split(SPACE)
    ids = self._processor.encode(first)
    for part in rest:
      ids += self._texts[SPACE] + self._processor.encode(part)
    return ids

  def encode_batch(self, texts):
    """Encodes in one thread per core."""
    if any(SPACE in text for text in texts):
      return super().encode_batch(texts)
    return self._processor.encode(list(texts), num_threads=num_threads())

  def sample(self, text, rate, rng):
    """Samples a segmentation.

    BPE: BPE dropout at `rate` (https://arxiv.org/abs/1910.13267). Unigram: with probability `rate` one
    of the 64 likeliest segmentations, in proportion to likelihood^0.2 (https://arxiv.org/abs/1804.10959,
    section 3.2). The library's own sampling is not reproducible across processes.
    """
    if rate == 0 or not text or SPACE in text:
      return self.encode(text)
    if self._is_bpe:
      return self._sample_bpe(text, rate, rng)
    if rng.random() >= rate:
      return self.encode(text)
    likeliest = self._processor.nbest_encode(text, nbest_size=64, return_type=int)
    # An unknown character has the same bytes in all segmentations, so its scores cancel.
    scores = 0.2 * np.array([self._scores[ids].sum() for ids in likeliest])
    weights = np.exp(scores - scores.max())
    return likeliest[rng.choice(len(weights), p=weights / weights.sum())]

  def _sample_bpe(self, text: str, rate: float, rng: np.random.Generator) -> list[int]:
    ids: list[int] = []
    for word in _words(text):
      for piece in apply_merges(word, self._ranks, rate, rng):
        piece_id = self._processor.piece_to_id(piece)
        piece_ids = [piece_id] if piece_id != self.unk_id else self._byte_ids(piece)
        # Consecutive unknown characters are one unk, as in the library.
        if piece_ids != [self.unk_id] or ids[-1:] != [self.unk_id]:
          ids += piece_ids
    return ids

  def trace(self, chunks):
    """Replays the merges of BPE; a character outside of the vocabulary counts as one token."""
    if not self._is_bpe:
      raise UserError(
        "unigram models have no merges to trace: set SentencePiece.model_type = 'bpe', or use BPE"
      )
    words: collections.Counter[str] = collections.Counter()
    for chunk in chunks:
      words.update(_words(chunk.replace(SPACE, ' ')))
    by_rank: dict[int, list[tuple[str, str]]] = {}
    for pair, rank in sorted(self._ranks.items(), key=lambda item: item[1]):
      by_rank.setdefault(rank, []).append(pair)
    return trace_merges(words, by_rank.values(), self.vocab_size - len(by_rank), str)

  def _byte_ids(self, character: str) -> list[int]:
    """Returns the ids of the bytes of a character, or unk if the vocabulary has no bytes."""
    ids = [self._processor.piece_to_id(f'<0x{byte:02X}>') for byte in character.encode()]
    return [self.unk_id] if self.unk_id in ids else ids

  @functools.cached_property
  def _scores(self) -> np.ndarray:
    return np.array([self._processor.get_score(i) for i in range(self.vocab_size)])

  @functools.cached_property
  def _is_bpe(self) -> bool:
    """True if the model is BPE, whose scores are negative ranks of merges."""
    return bool((self._scores == np.trunc(self._scores)).all())

  @functools.cached_property
  def _ranks(self) -> dict[tuple[str, str], int]:
    """Pair of strings -> rank; any two strings that make up a piece can be merged."""
    ranks = (-self._scores).astype(int).tolist()
    return {
      (piece[:k], piece[k:]): ranks[i]
      for i, piece in enumerate(self._pieces)
      if not (self.special[i] or self._processor.is_byte(i))
      for k in range(1, len(piece))
    }

  def decode(self, ids):
    """Returns the text; invalid UTF-8 becomes U+FFFD."""
    return self._processor.decode(self._text_ids(ids))

  def files(self):
    """Returns the SentencePiece model, and tokenizer.json with the kind."""
    return {'tokenizer.json': self._description(), 'sentencepiece.model': self._model}

  @classmethod
  def load(cls, folder, saved):
    return cls(sentencepiece_model(folder / 'sentencepiece.model'))


@dataclasses.dataclass(frozen=True)
class SentencePiece(TokenizerConfig):
  """A SentencePiece model without normalisation, which preserves white space.

  Line breaks and indents are pieces.

  Attributes:
    vocab_size: number of ids, including special ids and the 256 bytes.
    model_type: algorithm. BPE trains faster; unigram encodes faster.
    character_coverage: fraction of the training text that the characters in the vocabulary cover; rarer
      characters are encoded as bytes.
    byte_fallback: encodes unknown characters as bytes, which makes the tokenizer lossless; False: as unk.
    split_digits: makes each digit a token.
  """

  kinds = (SentencePieceTokenizer,)

  vocab_size: Size
  model_type: Literal['bpe', 'unigram'] = 'bpe'
  character_coverage: Annotated[float, Range('0 < x <= 1')] = 1.0
  byte_fallback: bool = True
  split_digits: bool = False
  sample_megabytes: Positive = 5.0

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """Trains on a sample of the texts; deterministic, because it uses one thread."""
    chunks = [chunk.replace(SPACE, ' ') for chunk in sample(texts, self.sample_megabytes)]
    if not any(chunk.strip() for chunk in chunks):
      raise UserError('there is no text to train the SentencePiece tokenizer on')
    import sentencepiece

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


def num_threads() -> int:
  """Returns the number of threads for a batch of texts: RAYON_NUM_THREADS, or one per core.

  Hugging Face's library reads the same variable.
  """
  value = os.environ.get('RAYON_NUM_THREADS', '')
  return (int(value) if value.isdecimal() else 0) or os.cpu_count() or 1


def _words(text: str) -> list[str]:
  """Splits a text into words, each with the spaces before it; no piece crosses the end of a word."""
  return re.findall(f'{SPACE}*[^{SPACE}]+|{SPACE}+$', text.replace(' ', SPACE))


def _fill_byte_spans(pieces: Sequence[str], spans: Sequence[Span]) -> list[Span]:
  """Gives all bytes of a character its span; SentencePiece does so only for the last byte."""
  filled = list(spans)
  for i in range(len(filled) - 2, -1, -1):
    if filled[i][0] == filled[i][1] and pieces[i].strip(SPACE):
      filled[i] = filled[i + 1]
  return filled


def _vocabulary_error(vocab_size: int, message: str) -> Exception:
  """Converts an error of SentencePiece to a message of one line."""
  if limit := re.search(r'value <= (\d+)', message):
    reason = f'too large for the training text: set it to at most {limit[1]}'
  elif limit := re.search(r'required_chars\. \d+ vs (\d+)', message):
    reason = (
      f'too small for the characters of the training text: set it to at least {limit[1]}, or set a '
      'smaller SentencePiece.character_coverage'
    )
  else:
    reason = ' '.join(message.split())
  return UserError(f'SentencePiece.vocab_size = {vocab_size}: {reason}')
