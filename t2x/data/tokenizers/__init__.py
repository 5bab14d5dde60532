"""Text to tokens and back."""

from t2x.data.tokenizers.sentencepiece import (
  Bytes,
  Characters,
  SentencePiece,
  Tokenizer,
  TokenizerConfig,
  load_tokenizer,
)

__all__ = ['Bytes', 'Characters', 'SentencePiece', 'Tokenizer', 'TokenizerConfig', 'load_tokenizer']
