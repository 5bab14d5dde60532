"""What a tokenizer is: text to ids and back, and where in the text each id stands."""

import abc
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

import numpy as np
from jaxtyping import Bool, Int

from t2x.data.prepared_folders import cache_folder, fingerprint, prepare, write_folder
from t2x.errors import UserError, in_a_line
from t2x.external_files import LARGE, read_json

# Special ids, and 'A' and 'B' where one's text goes; each with its token type.
Template = tuple[tuple[int | str, int], ...]


@dataclasses.dataclass(frozen=True)
class Located:
  """The ids of a text and where they stand in it; a slice is that of both.

  Attributes:
    ids: without special ones (but unk).
    spans: first character and the one after the last, of each id, in the text as it was given.
      White space around a piece is left out of its span; a piece of white space alone has an empty
      one. Pieces that share a character (its bytes) have that character as their span.
  """

  ids: Int[np.ndarray, 'length']
  spans: Int[np.ndarray, 'length 2']

  def __len__(self) -> int:
    return len(self.ids)

  def __getitem__(self, part: slice) -> 'Located':
    return Located(self.ids[part], self.spans[part])


@dataclasses.dataclass(frozen=True)
class Encoding:
  """One text or two with the special ids that a model wants around them.

  Attributes:
    ids: special ones included.
    types: the token types that the model was trained with (BERT's 0 and 1).
    texts: 0 for ids of the first text, 1 for the second, -1 for special ids.
    spans: as `Located` has them, each in its own text; 0, 0 for special ids.
  """

  ids: Int[np.ndarray, 'length']
  types: Int[np.ndarray, 'length']
  texts: Int[np.ndarray, 'length']
  spans: Int[np.ndarray, 'length 2']

  def __len__(self) -> int:
    return len(self.ids)


class SpecialIds:
  """The ids of the special tokens, as t2x's own tokenizers have them.

  Attributes:
    pad_id: fills rows.
    eos_id: ends a text.
    unk_id: stands for what has no id.
    bos_id: begins a text.
    mask_id: hides a token; None: the tokenizer has none.
    start_id: what a decoder that follows an encoder reads first.
    before: ids that a text of an encoder-decoder begins with, beside the eos that it ends with.
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
    kind: what `save` writes down for `load_tokenizer`.
    vocab_size: number of ids, the special ones included.
    single: the special ids around one text.
    pair: the special ids around two.
  """

  kind: ClassVar[str]
  single: Template = ((3, 0), ('A', 0), (1, 0))
  pair: Template = ((3, 0), ('A', 0), (1, 0), ('B', 1), (1, 1))

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]:
    """Ids without special ones (but unk)."""

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """`encode` of each text."""
    return [self.encode(text) for text in texts]

  def sample(self, text: str, rate: float, rng: np.random.Generator) -> list[int]:
    """Ids of the same text in pieces drawn at random; at rate 0 those of `encode`.

    Args:
      text: what is encoded.
      rate: from 0 to 1, how much is left to chance.
      rng: what is drawn from; the same state gives the same pieces.

    Raises:
      UserError: text can be cut in one way alone.
    """
    raise UserError(
      f'a tokenizer of kind {self.kind} cuts a text in one way alone: pieces cannot be drawn; '
      'BPE and SentencePiece can'
    )

  @abc.abstractmethod
  def locate(self, text: str) -> Located:
    """`encode`, and where in the text each id stands."""

  def join(self, first: Located, second: Located | None = None) -> Encoding:
    """One text or two, cut by the caller as it likes, with the special ids around them."""
    texts = {'A': first} if second is None else {'A': first, 'B': second}
    parts = []
    for item, kind in self.single if second is None else self.pair:
      part = texts[item] if isinstance(item, str) else _located([item], [(0, 0)])
      which = 'AB'.index(item) if isinstance(item, str) else -1
      parts.append((part, np.full(len(part), kind), np.full(len(part), which)))
    return Encoding(
      np.concatenate([part.ids for part, _, _ in parts]),
      np.concatenate([kinds for _, kinds, _ in parts]).astype(np.int32),
      np.concatenate([which for _, _, which in parts]).astype(np.int32),
      np.concatenate([part.spans for part, _, _ in parts]),
    )

  def encode_pair(self, first: str, second: str | None = None) -> Encoding:
    """`join` of whole texts."""
    return self.join(self.locate(first), None if second is None else self.locate(second))

  def prompt(self, text: str) -> list[int]:
    """What a model that continues `text` reads: the special ids before it, and its own; at least one."""
    before = itertools.takewhile(lambda item: not isinstance(item[0], str), self.single)
    ids = [int(item) for item, _ in before]
    return ids + self.encode(text) or [self.bos_id]

  def num_added(self, pair: bool = False) -> int:
    """How many special ids `join` adds to one text, or to two."""
    return sum(not isinstance(item, str) for item, _ in (self.pair if pair else self.single))

  @property
  def target(self) -> 'Tokenizer':
    """The tokenizer of what a translation is into: this one, but where a model has two."""
    return self

  @abc.abstractmethod
  def decode(self, ids: Iterable[SupportsIndex]) -> str:
    """Text; special ids and ids outside of the vocabulary are left out."""

  @abc.abstractmethod
  def pieces(self, ids: Iterable[SupportsIndex]) -> list[str]:
    """What each id stands for, to be looked at."""

  @abc.abstractmethod
  def word_starts(self, ids: Int[np.ndarray, 'length']) -> Bool[np.ndarray, 'length']:
    """True where a word begins; white space belongs to the word after it."""

  @functools.cached_property
  def special(self) -> Bool[np.ndarray, 'vocab']:
    """True for the ids that no text has, and for unk."""
    ids = {self.pad_id, self.eos_id, self.unk_id, self.bos_id, self.mask_id, self.start_id}
    found = np.zeros(self.vocab_size, bool)
    found[[i for i in ids if i is not None]] = True
    return found

  @abc.abstractmethod
  def files(self) -> dict[str, bytes]:
    """File name -> contents; what `load` reads."""

  @classmethod
  @abc.abstractmethod
  def load(cls, folder: Path, known: Mapping[str, Any]) -> 'Tokenizer':
    """The tokenizer whose `files` are in a folder; `known` is what its tokenizer.json says."""

  def hub_files(self) -> dict[str, bytes]:
    """The files that a model folder has of this tokenizer: name -> contents.

    Raises:
      UserError: other people's libraries have no such tokenizer.
    """
    raise UserError(f'a tokenizer of kind {self.kind} cannot be written for other libraries')

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

  def _described(self, **known: Any) -> bytes:
    """What tokenizer.json holds: the kind and what else there is to know."""
    return json.dumps({'kind': self.kind, **known}, sort_keys=True).encode()

  def _kept(self, ids: Iterable[SupportsIndex]) -> list[int]:
    """Those that stand for text, and unk."""
    special, unk = self.special, self.unk_id
    known = map(operator.index, ids)
    return [i for i in known if 0 <= i < len(special) and (not special[i] or i == unk)]


class TokenizerConfig(abc.ABC):
  """What a config file says of a tokenizer.

  Attributes:
    kinds: the classes of what `train` gives, for `fit` to read them back.
    vocab_size: number of ids of the fitted tokenizer; None: known only once it is fitted.
  """

  kinds: ClassVar[tuple[type[Tokenizer], ...]]
  vocab_size: int | None

  @property
  def ids(self) -> SpecialIds:
    """The special ids of the tokenizer."""
    return SpecialIds()

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
    folder = self._folder(cache, source_fingerprint)
    prepare(folder, lambda temporary: self.train(texts())._write(temporary))
    return read(folder, self.kinds)

  def is_fitted(self, source_fingerprint: str, cache: Path | None = None) -> bool:
    """Whether `fit` would read the tokenizer of a source from the cache."""
    return self._folder(cache, source_fingerprint).exists()

  def _folder(self, cache: Path | None, source_fingerprint: str) -> Path:
    name = f'{type(self).__name__.lower()}-{fingerprint(self, source_fingerprint)}'
    return (cache or cache_folder()) / 'tokenizers' / name


class Fitted(TokenizerConfig):
  """A tokenizer that is there, as a config."""

  def __init__(self, tokenizer: Tokenizer):
    self.tokenizer = tokenizer
    self.vocab_size = tokenizer.vocab_size

  @property
  def ids(self):
    """The tokenizer's own."""
    return self.tokenizer

  def train(self, texts):
    """The texts are not read."""
    return self.tokenizer

  def fit(self, texts, cache=None, source_fingerprint=''):
    """The tokenizer itself."""
    return self.tokenizer


@dataclasses.dataclass(frozen=True)
class NoTokenizer(TokenizerConfig):
  """What a task has whose config sets no tokenizer: the one in its run folder."""

  vocab_size: None = None

  @property
  def ids(self):
    """Raises UserError, as `train`."""
    return self.train(())

  def train(self, texts):
    """Raises UserError: there is no tokenizer to train."""
    raise UserError("the task has no tokenizer, and its run folder keeps none: set its 'tokenizer'")

  def is_fitted(self, source_fingerprint, cache=None):
    """Never."""
    return False


def read(folder: Path, kinds: Iterable[type[Tokenizer]]) -> Tokenizer:
  """The tokenizer that was saved in `folder`, which is of one of these kinds.

  Raises:
    UserError: it is damaged or of another kind.
  """
  if not (folder / 'tokenizer.json').exists():
    raise UserError(f'{folder} holds no tokenizer: it has no tokenizer.json')
  known = read_json(folder / 'tokenizer.json', LARGE)
  try:
    kind = {kind.kind: kind for kind in kinds}[known.pop('kind')]
    tokenizer = kind.load(folder, known)
  except UserError:
    raise
  # Libraries raise bare Exceptions for files that they cannot read.
  except Exception as error:
    raise UserError(f'{folder} holds no tokenizer: {in_a_line(error)}') from error
  check_ids(tokenizer, str(folder))
  return tokenizer


def check_ids(tokenizer: Tokenizer, where: str) -> None:
  """Refuses special ids that the vocabulary does not have.

  Raises:
    UserError: naming the role.
  """
  roles = ('pad_id', 'eos_id', 'unk_id', 'bos_id', 'mask_id', 'start_id')
  for role in roles:
    i = getattr(tokenizer, role)
    if i is not None and not 0 <= i < tokenizer.vocab_size:
      raise UserError(
        f'{where}: {role} = {i}, and the tokenizer has the ids 0 to {tokenizer.vocab_size - 1}'
      )


def located(text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> Located:
  """`Located` of spans that may hold white space, which is cut off."""
  trimmed = []
  for start, stop in spans:
    piece = text[start:stop]
    begin = start + len(piece) - len(piece.lstrip())
    trimmed.append((begin, max(begin, start + len(piece.rstrip()))))
  return _located(ids, trimmed)


def _located(ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> Located:
  return Located(np.array(ids, np.int32), np.array(spans, np.int32).reshape(-1, 2))
