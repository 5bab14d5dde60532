"""Tokenizers: text to token ids and back.

A `TokenizerConfig` is a frozen dataclass with the vocabulary size; its `fit` returns the tokenizer, which
is trained at first use and cached. The tokenizers that t2x trains share the special ids pad 0, eos 1, unk 2,
bos 3 and mask 4. Tokenizers read from model folders (`HubTokenizer`) have the special ids of the folder.
"""

from pathlib import Path

from t2x.data.tokenizers.base import (
  Encoding,
  Fitted,
  Located,
  SpecialIds,
  Template,
  Tokenizer,
  TokenizerConfig,
  read,
)
from t2x.data.tokenizers.characters import Bytes, ByteTokenizer, Characters, CharacterTokenizer
from t2x.data.tokenizers.fast import FastTokenizer
from t2x.data.tokenizers.hub import HubTokenizer, load_hub_tokenizer
from t2x.data.tokenizers.hub_sentencepiece import MarianTokenizer, SpieceTokenizer
from t2x.data.tokenizers.run_tokenizer import RunTokenizer
from t2x.data.tokenizers.sentencepiece import SentencePiece, SentencePieceTokenizer
from t2x.data.tokenizers.trained import BPE, WordPiece

__all__ = [
  'BPE',
  'Bytes',
  'Characters',
  'Encoding',
  'Fitted',
  'HubTokenizer',
  'Located',
  'RunTokenizer',
  'SentencePiece',
  'SpecialIds',
  'Template',
  'Tokenizer',
  'TokenizerConfig',
  'WordPiece',
  'load_hub_tokenizer',
  'load_tokenizer',
]


KINDS = (
  ByteTokenizer,
  CharacterTokenizer,
  FastTokenizer,
  MarianTokenizer,
  SentencePieceTokenizer,
  SpieceTokenizer,
)


def load_tokenizer(folder: str | Path) -> Tokenizer:
  """Returns the tokenizer that `Tokenizer.save` wrote to `folder`.

  Raises:
    UserError: the folder holds no tokenizer, or a damaged one.
  """
  return read(Path(folder), KINDS)
