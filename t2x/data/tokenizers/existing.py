"""Tokenizers that exist: in memory, or stored in a run folder."""

import dataclasses
import importlib
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.ranges import Size, Text
from t2x.data.tokenizers.base import Existing, SpecialIds, Tokenizer, read

__all__ = ['RunTokenizer', 'load_tokenizer']

# Module and class of each kind of stored tokenizer. Reading one imports its module, not those of the others.
CLASSES = {
  'bytes': 'characters.ByteTokenizer',
  'characters': 'characters.CharacterTokenizer',
  'fast': 'fast.FastTokenizer',
  'marian': 'hub_sentencepiece.MarianTokenizer',
  'palette': 'palette.PaletteTokenizer',
  'sentencepiece': 'sentencepiece.SentencePieceTokenizer',
  'spiece': 'hub_sentencepiece.SpieceTokenizer',
}


def load_tokenizer(folder: str | Path) -> Tokenizer:
  """Returns the tokenizer that `Tokenizer.save` wrote to `folder`.

  Raises:
    UserError: the folder holds no tokenizer, or a damaged one.
  """
  return read(Path(folder), class_of)


def class_of(kind: str) -> type[Tokenizer]:
  """Returns the class of tokenizers of a kind; raises KeyError if there is none."""
  module, _, name = CLASSES[kind].partition('.')
  return getattr(importlib.import_module(f't2x.data.tokenizers.{module}'), name)


class Fitted(Existing):
  """The config of a tokenizer in memory."""

  def __init__(self, tokenizer: Tokenizer):
    self.tokenizer = tokenizer
    self.vocab_size = tokenizer.vocab_size

  def load(self):
    return self.tokenizer

  def __repr__(self) -> str:
    return f'Fitted({self.tokenizer.fingerprint})'


@dataclasses.dataclass(frozen=True)
class NoTokenizer(Existing):
  """The default of `TextTask.tokenizer`: replaced by the tokenizer of the run folder."""

  vocab_size: None = None

  def load(self):
    """Raises UserError: the task has no tokenizer."""
    raise UserError(
      "neither the task's config nor its run folder has a tokenizer: set 'tokenizer' of the task"
    )

  def is_fitted(self, source_fingerprint, cache=None):
    return False


@dataclasses.dataclass(frozen=True)
class RunTokenizer(Existing):
  """The tokenizer stored in another run's folder.

  For runs that start from the parameters of another run (`InitFrom`).

  Attributes:
    run: the run folder.
    vocab_size: number of ids, including special ids, to check a config before the run exists; None: that of the
      stored tokenizer.
  """

  run: Text
  vocab_size: Size | None = None

  @property
  def ids(self):
    """The special ids; those of any tokenizer if `vocab_size` is set and the run does not exist yet."""
    if self.vocab_size is None or Path(self.run).exists():
      return self.load()
    return SpecialIds()

  def load(self):
    """Loads the tokenizer from the run folder.

    Raises:
      UserError: the run folder has no tokenizer, or one with another vocabulary size.
    """
    folder = Path(self.run) / 'tokenizer'
    if not folder.is_dir():
      raise UserError(
        f'RunTokenizer.run: {self.run} has no folder tokenizer: set it to the folder of a run with text'
      )
    return self._check_size(load_tokenizer(folder), self.run)
