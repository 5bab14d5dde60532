"""Tokenizers of other people's model folders (Hugging Face's layout).

`tokenizer.json`, and where there is none the files of older models: `vocab.txt` (BERT's WordPiece),
`vocab.json` with `merges.txt` (byte-level BPE of GPT-2 and BART; GPT-1's), `spiece.model` (T5,
ALBERT), `source.spm` and `target.spm` with `vocab.json` (Marian).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from t2x.data.tokenizers.base import Tokenizer, TokenizerConfig, check_ids
from t2x.data.tokenizers.hub_files import merges, tokenizer_json, word_pieces
from t2x.data.tokenizers.hub_sentencepiece import marian, spiece
from t2x.data.tokenizers.special_tokens import Folder, Unsupported
from t2x.errors import UserError
from t2x.external_files import shown
from t2x.ranges import Size, Text


@dataclasses.dataclass(frozen=True)
class HubTokenizer(TokenizerConfig):
  """The tokenizer of a model folder; nothing to train.

  The run folder keeps all of it, so that the run does not need the model folder again.

  Attributes:
    folder: the model folder.
    vocab_size: number of ids, special ones included, as the folder has them.
  """

  folder: Text
  vocab_size: Size

  @property
  def ids(self):
    """Read from the folder."""
    return load_hub_tokenizer(self.folder)

  def train(self, texts: Iterable[str]) -> Tokenizer:
    """The texts are not read."""
    tokenizer = load_hub_tokenizer(self.folder)
    if tokenizer.vocab_size != self.vocab_size:
      raise UserError(
        f'HubTokenizer.vocab_size = {self.vocab_size}: '
        f'the tokenizer of {self.folder} has {tokenizer.vocab_size} ids'
      )
    return tokenizer

  def fit(self, texts, cache=None, source_fingerprint=''):
    """The folder's own; not cached, as the folder may change."""
    return self.train(())


def load_hub_tokenizer(folder: str | Path) -> Tokenizer:
  """The tokenizer of a model folder.

  Special ids are those that the folder's files name (`special_tokens_map.json`,
  `tokenizer_config.json`, `config.json`, `generation_config.json`), or those of tokens with the usual
  names. Where a model has no eos it is its [SEP], where it has no bos its [CLS].

  Raises:
    Unsupported: there is no tokenizer, it is of a kind that is not read here, or nothing says what is
      special.
    UserError: a file is damaged, a field of another kind, or the tokenizer beyond what is supported.
  """
  path = Path(folder)
  for names, reader in READERS.items():
    if all((path / name).exists() for name in names):
      try:
        tokenizer = reader(Folder.read(path))
        check_ids(tokenizer, str(path))
        return tokenizer
      except UserError:
        raise
      # The library raises bare Exceptions, and panics.
      except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != 'PanicException':
          raise
        raise UserError(
          f'{path / names[0]} cannot be read as a tokenizer: {shown(error)}'
        ) from error
  known = ', '.join(' with '.join(names) for names in READERS)
  raise Unsupported(f'{path} holds no tokenizer: looked for {known}')


# The files that tell a tokenizer, in the order in which they are looked for.
READERS: Mapping[tuple[str, ...], Callable[[Folder], Tokenizer]] = {
  ('tokenizer.json',): tokenizer_json,
  ('source.spm', 'target.spm', 'vocab.json'): marian,
  ('spiece.model',): spiece,
  ('vocab.json', 'merges.txt'): merges,
  ('vocab.txt',): word_pieces,
}
