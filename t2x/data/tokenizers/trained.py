"""Training of WordPiece (Wu et al. 2016, https://arxiv.org/abs/1609.08144; with BERT's pre-tokenizer) and
byte-level BPE (with GPT-2's pre-tokenizer)."""

import collections
import dataclasses
import types
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Positive, Size, Text
from t2x.data.tokenizers.base import SpecialIds, Tokenizer, TokenizerConfig
from t2x.data.tokenizers.characters import SPECIALS
from t2x.data.tokenizers.fast import FastTokenizer, tokenizers_library
from t2x.data.tokenizers.special_tokens import SpecialTokens
from t2x.data.tokenizers.text_sample import sample

if TYPE_CHECKING:
  from tokenizers import Tokenizer as Backend

__all__ = ['BPE', 'WordPiece']


class _Trainable(Protocol):
  """The settings that both kinds of tokenizers have."""

  @property
  def vocab_size(self) -> int: ...

  @property
  def sample_megabytes(self) -> float: ...

  @property
  def ids(self) -> SpecialIds: ...


@dataclasses.dataclass(frozen=True)
class BPE(TokenizerConfig):
  """Byte-level BPE: GPT-2's pre-tokenizer, then merges of the most frequent pairs.

  Lossless: decoding returns the original text.

  Attributes:
    vocab_size: number of ids, including special ids, the named tokens and the 256 bytes.
    named: names of further special tokens, which a task puts into its rows, such as `Transcription.prompt`. In texts,
      these names are plain text.
  """

  packages = ('tokenizers',)

  kinds = (FastTokenizer,)

  vocab_size: Size
  sample_megabytes: Positive = 5.0
  named: Sequence[Text] = ()

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """Trains on a sample of the texts; deterministic."""
    library = tokenizers_library()
    backend = library.Tokenizer(library.models.BPE())
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
      vocab_size=self.vocab_size,
      special_tokens=[*SPECIALS, *self.named],
      initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
      show_progress=False,
    )
    backend.train_from_iterator(_sample(self, texts), trainer)
    return _build(self, backend)


@dataclasses.dataclass(frozen=True)
class WordPiece(TokenizerConfig):
  """WordPiece: BERT's pre-tokenizer, then longest-match-first segmentation of each word.

  As in the `tokenizers` library, the vocabulary is trained by BPE merges. Lossy: white space is normalised,
  and a word with a character outside of the vocabulary becomes unk.

  Attributes:
    vocab_size: number of ids, including special ids.
    lowercase: converts to lower case and removes accents.
    max_characters: maximum number of characters in the vocabulary; the most frequent ones are used.
  """

  packages = ('tokenizers',)

  kinds = (FastTokenizer,)

  vocab_size: Size
  lowercase: bool = True
  max_characters: Count = 1000
  sample_megabytes: Positive = 5.0

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """Trains on a sample of the texts; deterministic."""
    library = tokenizers_library()
    chunks = _sample(self, texts)
    backend = _bert(library, {}, self.lowercase)
    # The library orders continuation characters arbitrarily; listing them makes their ids deterministic.
    first, inner = _characters(backend, chunks, self.max_characters)
    pieces = [*SPECIALS, *first, *(f'##{character}' for character in inner)]
    trainer = library.trainers.WordPieceTrainer(
      vocab_size=self.vocab_size,
      special_tokens=pieces,
      initial_alphabet=first,
      limit_alphabet=len(first),
      show_progress=False,
    )
    backend.train_from_iterator(chunks, trainer)
    trained = _bert(library, backend.get_vocab(), self.lowercase)
    trained.add_special_tokens(list(SPECIALS))
    return _build(self, trained)


def _bert(library: types.ModuleType, vocab: dict[str, int], lowercase: bool) -> Any:
  backend = library.Tokenizer(library.models.WordPiece(vocab, unk_token='<unk>'))
  backend.normalizer = library.normalizers.BertNormalizer(lowercase=lowercase)
  backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
  backend.decoder = library.decoders.WordPiece()
  return backend


def _characters(
  backend: 'Backend', chunks: Iterable[str], limit: int
) -> tuple[list[str], list[str]]:
  """Returns the most frequent characters, and the subset that also continues words; both sorted."""
  words = collections.Counter[str]()
  for chunk in chunks:
    splits = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(chunk))
    words.update(word for word, _ in splits)
  counts, inner = collections.Counter[str](), set[str]()
  for word, count in words.items():
    for character in word:
      counts[character] += count
    inner.update(word[1:])
  best = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
  return sorted(best), sorted(inner.intersection(best))


def _sample(config: _Trainable, texts: Iterable[str]) -> list[str]:
  """Samples the training text.

  Raises:
    UserError: the texts are empty.
  """
  chunks = sample(texts, config.sample_megabytes)
  if not any(chunk.strip() for chunk in chunks):
    raise UserError(f'there is no text to train the {type(config).__name__} tokenizer on')
  return chunks


def _build(config: _Trainable, backend: 'Backend') -> Tokenizer:
  """Returns the trained tokenizer with its templates.

  Raises:
    UserError: the vocabulary size does not fit the text.
  """
  size = backend.get_vocab_size()
  if size != config.vocab_size:
    limit = (
      'large for the training text: set it to at most'
      if size < config.vocab_size
      else 'small: set it to at least'
    )
    name = f'{type(config).__name__}.vocab_size'
    raise UserError(f'{name} = {config.vocab_size}: too {limit} {size}')
  first, last = SPECIALS[config.ids.bos_id], SPECIALS[config.ids.eos_id]
  # The same templates as `Tokenizer.single` and `pair`, for exported files.
  backend.post_processor = tokenizers_library().processors.TemplateProcessing(
    single=f'{first}:0 $A:0 {last}:0',
    pair=f'{first}:0 $A:0 {last}:0 $B:1 {last}:1',
    special_tokens=[(first, config.ids.bos_id), (last, config.ids.eos_id)],
  )
  return FastTokenizer(backend.to_str(), SpecialTokens())
