"""Text to tokens and back.

A config is a frozen dataclass that knows its vocabulary's size; `fit` gives the tokenizer, made at
first use and cached. t2x's own tokenizers lose nothing and share the ids of the special tokens: pad
0, eos 1, unk 2, bos 3, mask 4; those of other people's model folders have their own.
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
  """The tokenizer that was saved in `folder`."""
  return read(Path(folder), KINDS)
