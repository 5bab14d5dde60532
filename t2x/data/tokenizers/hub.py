"""Tokenizers of model folders in Hugging Face's layout.

Reads `tokenizer.json` or, if it is missing, the files of older models: `vocab.txt` (WordPiece of BERT),
`vocab.json` with `merges.txt` (byte-level BPE of GPT-2 and BART; BPE of GPT-1), `spiece.model` (T5,
ALBERT), `source.spm` and `target.spm` with `vocab.json` (Marian).
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.external_files import shown
from t2x.base.ranges import Size, Text
from t2x.data.tokenizers.base import Existing, Tokenizer, check_ids
from t2x.data.tokenizers.hub_files import merges, tokenizer_json, word_pieces
from t2x.data.tokenizers.hub_sentencepiece import marian, spiece
from t2x.data.tokenizers.special_tokens import TokenizerFolder, Unsupported

__all__ = ['HubTokenizer', 'load_hub_tokenizer']


@dataclasses.dataclass(frozen=True)
class HubTokenizer(Existing):
  """The pretrained tokenizer of a model folder.

  The run folder stores a copy, so the run does not need the model folder again.

  Attributes:
    folder: the model folder.
    vocab_size: number of ids, including special ids; must equal that of the folder's tokenizer.
  """

  folder: Text
  vocab_size: Size

  def load(self):
    """Loads the tokenizer from the folder.

    Raises:
      UserError: the folder's tokenizer has another vocabulary size.
    """
    return self._check_size(load_hub_tokenizer(self.folder), self.folder)


def load_hub_tokenizer(folder: str | Path) -> Tokenizer:
  """Loads the tokenizer of a model folder.

  The special tokens are read from `special_tokens_map.json`, `tokenizer_config.json`, `config.json` and
  `generation_config.json`; roles that no file defines go to tokens with the usual names. [SEP] replaces a
  missing eos, [CLS] a missing bos.

  Raises:
    Unsupported: the folder has no tokenizer, an unsupported type of tokenizer, or no special tokens.
    UserError: a file is damaged, a field has an invalid value, or the tokenizer exceeds a limit.
  """
  path = Path(folder)
  for names, reader in READERS.items():
    if all((path / name).exists() for name in names):
      try:
        tokenizer = reader(TokenizerFolder.read(path))
        check_ids(tokenizer, str(path))
        return tokenizer
      except UserError:
        raise
      # The library raises bare Exceptions, and PanicException is not an Exception.
      except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != 'PanicException':
          raise
        raise UserError(
          f'{path / names[0]} cannot be read as a tokenizer: {shown(error)}'
        ) from error
  supported = ', '.join(' with '.join(names) for names in READERS)
  raise Unsupported(f'{path} holds no tokenizer: it must have one of {supported}')


# Files of each layout -> its reader, in the order in which the layouts are tried.
READERS: Mapping[tuple[str, ...], Callable[[TokenizerFolder], Tokenizer]] = {
  ('tokenizer.json',): tokenizer_json,
  ('source.spm', 'target.spm', 'vocab.json'): marian,
  ('spiece.model',): spiece,
  ('vocab.json', 'merges.txt'): merges,
  ('vocab.txt',): word_pieces,
}
