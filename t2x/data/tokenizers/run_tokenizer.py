"""The tokenizer of another run, for what is learnt on top of that run's model."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from t2x.data.tokenizers.base import Tokenizer, TokenizerConfig
from t2x.errors import UserError
from t2x.ranges import Size, Text


@dataclasses.dataclass(frozen=True)
class RunTokenizer(TokenizerConfig):
  """The tokenizer that a run folder keeps; nothing to train.

  A run that starts from another (`InitFrom`) reads its texts as that one did.

  Attributes:
    run: the run folder.
    vocab_size: number of ids, special ones included, as that run has them.
  """

  run: Text
  vocab_size: Size

  @property
  def ids(self):
    """Those of the run's tokenizer."""
    return self.train(())

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """The texts are not read."""
    # Which kinds there are is known to the package, which imports this file.
    from t2x.data.tokenizers import load_tokenizer

    folder = Path(self.run) / 'tokenizer'
    if not folder.is_dir():
      raise UserError(f'RunTokenizer.run: there is no tokenizer in the run folder {self.run}')
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab_size != self.vocab_size:
      raise UserError(
        f'RunTokenizer.vocab_size = {self.vocab_size}: '
        f'the tokenizer of {self.run} has {tokenizer.vocab_size} ids'
      )
    return tokenizer

  def fit(self, texts, cache=None, source_fingerprint=''):
    """The run's own; not cached, as the run may be made anew."""
    return self.train(())
