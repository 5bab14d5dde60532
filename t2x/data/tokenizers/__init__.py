"""Tokenizers: text to token ids and back.

A `TokenizerConfig` is a frozen dataclass with the vocabulary size; its `fit` returns the tokenizer, which
is trained at first use and cached. The tokenizers that t2x trains share the special ids pad 0, eos 1, unk 2,
bos 3 and mask 4. Tokenizers read from model folders (`HubTokenizer`) have the special ids of the folder.
"""

from t2x.data.tokenizers.base import (
  Encoding,
  Located,
  SpecialIds,
  Template,
  Tokenizer,
  TokenizerConfig,
)
from t2x.data.tokenizers.characters import Bytes, Characters
from t2x.data.tokenizers.existing import Fitted, RunTokenizer, load_tokenizer
from t2x.data.tokenizers.hub import HubTokenizer, load_hub_tokenizer
from t2x.data.tokenizers.sentencepiece import SentencePiece
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
