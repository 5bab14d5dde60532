"""Base classes of tokenizers (`Tokenizer`) and of their configs (`TokenizerConfig`)."""

import abc
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

import numpy as np
from jaxtyping import Bool, Int

from t2x.base.errors import UserError, error_line
from t2x.base.external_files import LARGE, read_json
from t2x.data.prepared_folders import cache_folder, fingerprint, prepare, write_folder
from t2x.data.tokenizers.merges import Merge
from t2x.data.tokenizers.word_starts import WordBoundaries

__all__ = ['Tokenizer', 'TokenizerConfig']

# SentencePiece's form of a space.
SPACE = '\u2581'
# Special ids and the placeholders 'A' and 'B' of the texts, each with its token type.
Template = tuple[tuple[int | str, int], ...]


@dataclasses.dataclass(frozen=True)
class Located:
  """The token ids of a text with their character spans; slicing slices both.

  Attributes:
    ids: token ids, without special ids except unk.
    spans: start (inclusive) and end (exclusive) of each token, in characters of the original text.
      Spans exclude leading and trailing white space; the span of a token of only white space is empty.
      Tokens for single bytes of a character have the span of that character.
  """

  ids: Int[np.ndarray, 'length']
  spans: Int[np.ndarray, 'length 2']

  def __len__(self) -> int:
    return len(self.ids)

  def __getitem__(self, part: slice) -> 'Located':
    return Located(self.ids[part], self.spans[part])


@dataclasses.dataclass(frozen=True)
class Encoding:
  """Token ids of one text or of a pair, including special ids.

  Attributes:
    ids: token ids, including special ids.
    types: token types (BERT's segment ids, 0 or 1).
    texts: 0 for ids of the first text, 1 for the second, -1 for special ids.
    spans: character spans as in `Located`, each in its own text; (0, 0) for special ids.
  """

  ids: Int[np.ndarray, 'length']
  types: Int[np.ndarray, 'length']
  texts: Int[np.ndarray, 'length']
  spans: Int[np.ndarray, 'length 2']

  def __len__(self) -> int:
    return len(self.ids)


class SpecialIds:
  """Ids of the special tokens; the defaults are those of the tokenizers that t2x trains.

  Attributes:
    pad_id: padding.
    eos_id: end of a text.
    unk_id: text that the vocabulary does not cover.
    bos_id: beginning of a text.
    mask_id: a masked token; None if the tokenizer has no mask token.
    start_id: first input of the decoder of an encoder-decoder.
    before: ids prepended to the texts of an encoder-decoder, in addition to the final eos.
    vocab_size: number of ids, including special ids.
  """

  pad_id: int = 0
  eos_id: int = 1
  unk_id: int = 2
  bos_id: int = 3
  mask_id: int | None = 4
  start_id: int = 3
  before: tuple[int, ...] = ()
  vocab_size: int


class Tokenizer(SpecialIds, abc.ABC):
  """A fitted tokenizer. Picklable.

  Attributes:
    kind: the type name that `save` writes and `load_tokenizer` reads.
    single: template of one text with its special ids.
    pair: template of two texts with their special ids.
  """

  kind: ClassVar[str]
  single: Template = ((3, 0), ('A', 0), (1, 0))
  pair: Template = ((3, 0), ('A', 0), (1, 0), ('B', 1), (1, 1))

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text, without special ids except unk."""

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text, as `encode`."""
    return [self.encode(text) for text in texts]

  def sample(self, text: str, rate: float, rng: np.random.Generator) -> list[int]:
    """Returns the ids of a random segmentation of the text (subword regularisation).

    Args:
      text: the text to encode.
      rate: amount of randomness, from 0 (the same ids as `encode`) to 1.
      rng: random generator; the same state gives the same ids.

    Raises:
      UserError: the tokenizer has only one segmentation of a text.
    """
    raise UserError(
      f'tokenizers of kind {self.kind} cannot sample segmentations: use BPE or SentencePiece, or '
      "leave out the task's 'pieces'"
    )

  def trace(self, chunks: Iterable[str]) -> Iterator[Merge]:
    """Yields the merges of BPE in order, replayed on parts of a training text; other kinds raise UserError."""
    raise UserError(f'{self.kind} has no merges to trace: use BPE, or SentencePiece of type bpe')

  def named_id(self, name: str) -> int:
    """Returns the id of a special token that a task names, such as '<|en|>'; raises UserError if there is none."""
    raise UserError(
      f"tokenizers of kind {self.kind} have no special token '{name}': use BPE with BPE.named, or HubTokenizer"
    )

  @abc.abstractmethod
  def locate(self, text: str) -> Located:
    """Returns the ids of a text, as `encode`, with their character spans."""

  def join(self, first: Located, second: Located | None = None) -> Encoding:
    """Adds the special ids to one encoded text or to a pair.

    Args:
      first: the first text, or a slice of it.
      second: the second text of a pair.
    """
    texts = {'A': first} if second is None else {'A': first, 'B': second}
    parts = []
    for item, token_type in self.single if second is None else self.pair:
      part = texts[item] if isinstance(item, str) else _to_located([item], [(0, 0)])
      index = 'AB'.index(item) if isinstance(item, str) else -1
      parts.append((part, np.full(len(part), token_type), np.full(len(part), index)))
    return Encoding(
      np.concatenate([part.ids for part, _, _ in parts]),
      np.concatenate([types for _, types, _ in parts]).astype(np.int32),
      np.concatenate([indices for _, _, indices in parts]).astype(np.int32),
      np.concatenate([part.spans for part, _, _ in parts]),
    )

  def encode_pair(self, first: str, second: str | None = None) -> Encoding:
    """Encodes one text or a pair, with special ids."""
    return self.join(self.locate(first), None if second is None else self.locate(second))

  def prompt(self, text: str) -> list[int]:
    """Returns the ids of a prompt for generation: leading special ids and the text, or only bos."""
    before = itertools.takewhile(lambda item: not isinstance(item[0], str), self.single)
    ids = [int(item) for item, _ in before]
    return ids + self.encode(text) or [self.bos_id]

  def num_added(self, pair: bool = False) -> int:
    """Returns the number of special ids that `join` adds to one text or to a pair."""
    return sum(not isinstance(item, str) for item, _ in (self.pair if pair else self.single))

  @property
  def target(self) -> 'Tokenizer':
    """The tokenizer of the target language; differs from this one in models with one per language."""
    return self

  @abc.abstractmethod
  def decode(self, ids: Iterable[SupportsIndex]) -> str:
    """Returns the text of the ids; skips special ids and ids outside of the vocabulary."""

  @property
  def _pieces(self) -> Sequence[str]:
    """The printable forms of all ids."""
    raise NotImplementedError

  def pieces(self, ids: Iterable[SupportsIndex]) -> list[str]:
    """Returns a printable form of each id; U+2581 is SentencePiece's space, <0x..> a byte."""
    names = self._pieces
    return [names[i] if 0 <= i < len(names) else '<none>' for i in map(operator.index, ids)]

  def word_starts(self, ids: Int[np.ndarray, 'length']) -> Bool[np.ndarray, 'length']:
    """Returns True for each token that begins a word; white space belongs to the following word."""
    return self._word_boundaries.starts(ids)

  @functools.cached_property
  def _word_boundaries(self) -> WordBoundaries:
    return WordBoundaries.from_pieces([p.replace(SPACE, ' ') for p in self._pieces], self.special)

  @functools.cached_property
  def special(self) -> Bool[np.ndarray, 'vocab']:
    """Mask over the vocabulary: True for special ids, including unk."""
    ids = {self.pad_id, self.eos_id, self.unk_id, self.bos_id, self.mask_id, self.start_id}
    mask = np.zeros(self.vocab_size, bool)
    mask[[i for i in ids if i is not None]] = True
    return mask

  @abc.abstractmethod
  def files(self) -> dict[str, bytes]:
    """Returns the files that `load` reads: name -> contents."""

  @classmethod
  @abc.abstractmethod
  def load(cls, folder: Path, saved: Mapping[str, Any]) -> 'Tokenizer':
    """Loads a tokenizer from a folder with its `files`.

    Args:
      folder: the folder.
      saved: the fields of its tokenizer.json, except the kind.
    """

  def prompts_only(self) -> 'Tokenizer':
    """Returns the tokenizer whose `hub_files` encode a text as a prompt of a causal language model."""
    return self

  def hub_files(self) -> dict[str, bytes]:
    """Returns the tokenizer's files in Hugging Face's layout: name -> contents.

    Raises:
      UserError: the layout does not support this tokenizer.
    """
    raise UserError(f'tokenizers of kind {self.kind} cannot be exported to a model folder')

  @functools.cached_property
  def fingerprint(self) -> str:
    """Hash of the tokenizer's files."""
    digest = hashlib.sha256()
    for name, contents in sorted(self.files().items()):
      digest.update(name.encode() + b'\0' + contents)
    return digest.hexdigest()[:16]

  def save(self, folder: Path) -> None:
    """Writes the tokenizer to a folder, for `load_tokenizer`."""
    write_folder(Path(folder), self._write)

  def _write(self, folder: Path) -> None:
    for name, contents in self.files().items():
      (folder / name).parent.mkdir(exist_ok=True)
      (folder / name).write_bytes(contents)

  def _description(self, **fields: object) -> bytes:
    """Returns the contents of tokenizer.json: the kind and further fields."""
    return json.dumps({'kind': self.kind, **fields}, sort_keys=True).encode()

  def _text_ids(self, ids: Iterable[SupportsIndex]) -> list[int]:
    """Removes special ids, except unk, and ids outside of the vocabulary."""
    special, unk = self.special, self.unk_id
    integers = map(operator.index, ids)
    return [i for i in integers if 0 <= i < len(special) and (not special[i] or i == unk)]


class TokenizerConfig(abc.ABC):
  """The settings of a tokenizer.

  Attributes:
    kinds: the classes of tokenizers that `train` returns and that `fit` loads from the cache.
    vocab_size: number of ids of the fitted tokenizer; None if it depends on the training texts.
    sample_megabytes: size of the training text, sampled evenly from the source.
  """

  kinds: ClassVar[tuple[type[Tokenizer], ...]]
  vocab_size: int | None
  sample_megabytes: float = 5.0

  @property
  def ids(self) -> SpecialIds:
    """The special ids of the tokenizer."""
    return SpecialIds()

  @abc.abstractmethod
  def train(self, texts: Iterable[str]) -> Tokenizer:
    """Trains a tokenizer on the texts."""

  def fit(
    self,
    texts: Callable[[], Iterable[Any]],
    cache: Path | None = None,
    source_fingerprint: str = '',
  ) -> Tokenizer:
    """Returns the tokenizer of a source, trained at first use and then read from the cache.

    Args:
      texts: returns the training texts of the source; pairs of an image and a text for a palette.
      cache: the cache folder (default: $T2X_CACHE or ~/.cache/t2x).
      source_fingerprint: identifies the source.

    Raises:
      UserError: the vocabulary size does not fit the texts.
    """
    folder = self._folder(cache, source_fingerprint)
    prepare(folder, lambda temporary: self.train(texts())._write(temporary))
    return read(folder, {cls.kind: cls for cls in self.kinds}.__getitem__)

  def is_fitted(self, source_fingerprint: str, cache: Path | None = None) -> bool:
    """Returns whether the cache holds the tokenizer of a source."""
    return self._folder(cache, source_fingerprint).exists()

  def _folder(self, cache: Path | None, source_fingerprint: str) -> Path:
    name = f'{type(self).__name__.lower()}-{fingerprint(self, source_fingerprint)}'
    return (cache or cache_folder()) / 'tokenizers' / name


class Existing(TokenizerConfig):
  """The config of an existing tokenizer, which is not cached because its files may change."""

  @abc.abstractmethod
  def load(self) -> Tokenizer:
    """Returns the tokenizer."""

  @property
  def ids(self):
    """The special ids of the tokenizer."""
    return self.load()

  def train(self, texts):
    """Returns the tokenizer, without reading the texts."""
    return self.load()

  def fit(self, texts, cache=None, source_fingerprint=''):
    """Returns the tokenizer."""
    return self.load()

  def is_fitted(self, source_fingerprint, cache=None):
    return True

  def _check_size(self, tokenizer: Tokenizer, folder: str) -> Tokenizer:
    """Raises UserError unless the tokenizer of `folder` has the vocabulary size of the config."""
    if self.vocab_size not in (None, tokenizer.vocab_size):
      raise UserError(
        f'{type(self).__name__}.vocab_size = {self.vocab_size}, but the tokenizer of {folder} has '
        f'{tokenizer.vocab_size} ids: set it to {tokenizer.vocab_size}'
      )
    return tokenizer


def read(folder: Path, class_of: Callable[[str], type[Tokenizer]]) -> Tokenizer:
  """Returns the tokenizer saved in `folder`.

  Args:
    folder: the folder.
    class_of: returns the class with this `kind`; raises KeyError if tokenizers of the kind cannot be read here.

  Raises:
    UserError: it is damaged or of another kind.
  """
  if not (folder / 'tokenizer.json').exists():
    raise UserError(f'{folder} holds no tokenizer: it has no tokenizer.json')
  saved = read_json(folder / 'tokenizer.json', LARGE)
  try:
    tokenizer = class_of(saved.pop('kind')).load(folder, saved)
  except UserError:
    raise
  # The libraries raise bare Exceptions for files that they cannot read.
  except Exception as error:
    raise UserError(f'{folder} holds no readable tokenizer: {error_line(error)}') from error
  check_ids(tokenizer, str(folder))
  return tokenizer


def check_ids(tokenizer: Tokenizer, where: str) -> None:
  """Raises UserError if a special id is outside of the vocabulary."""
  roles = ('pad_id', 'eos_id', 'unk_id', 'bos_id', 'mask_id', 'start_id')
  for role in roles:
    i = getattr(tokenizer, role)
    if i is not None and not (isinstance(i, int) and 0 <= i < tokenizer.vocab_size):
      raise UserError(
        f'{where}: {role} = {i!r} is not in the vocabulary, which has the ids 0 to '
        f'{tokenizer.vocab_size - 1}'
      )


def trim_spans(text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> Located:
  """Removes leading and trailing white space from the spans of ids."""
  trimmed = []
  for start, stop in spans:
    piece = text[start:stop]
    begin = start + len(piece) - len(piece.lstrip())
    trimmed.append((begin, max(begin, start + len(piece.rstrip()))))
  return _to_located(ids, trimmed)


def _to_located(ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> Located:
  return Located(np.array(ids, np.int32), np.array(spans, np.int32).reshape(-1, 2))


@functools.lru_cache(maxsize=64)
def ids_with(tokenizer: Tokenizer, texts: tuple[str, ...], setting: str) -> tuple[int, ...]:
  """Returns the tokens whose text contains one of `texts`.

  Raises:
    UserError: no token contains one of them.
  """
  decoded = ((i, tokenizer.decode([i])) for i in range(tokenizer.vocab_size))
  ids = tuple(i for i, text in decoded if any(part in text for part in texts))
  if not ids:
    raise UserError(
      f'no token of the tokenizer contains one of {setting} = {list(texts)}: use other texts or another tokenizer'
    )
  return ids
