"""The tokenizer of an earlier run, for runs that start from its model."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.ranges import Size, Text
from t2x.data.tokenizers.base import Tokenizer, TokenizerConfig

__all__ = ['RunTokenizer']


@dataclasses.dataclass(frozen=True)
class RunTokenizer(TokenizerConfig):
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
    """The special ids of the run's tokenizer."""
    return self.train(())

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """Loads the tokenizer from the run folder, without reading the texts.

    Raises:
      UserError: the run folder has no tokenizer, or one with another vocabulary size.
    """
    # Imported here because the package imports this module.
    from t2x.data.tokenizers import load_tokenizer

    folder = Path(self.run) / 'tokenizer'
    if not folder.is_dir():
      raise UserError(
        f'RunTokenizer.run: {self.run} has no folder tokenizer: set it to the folder of a run with text'
      )
    tokenizer = load_tokenizer(folder)
    if self.vocab_size not in (None, tokenizer.vocab_size):
      raise UserError(
        f'RunTokenizer.vocab_size = {self.vocab_size}, but the tokenizer of {self.run} has '
        f'{tokenizer.vocab_size} ids: set it to {tokenizer.vocab_size}'
      )
    return tokenizer

  def fit(self, texts, cache=None, source_fingerprint=''):
    """Loads the tokenizer from the run folder; not cached because the run may be repeated."""
    return self.train(())

  def is_fitted(self, source_fingerprint, cache=None):
    """Returns True: the tokenizer is loaded from the run folder."""
    return True
