"""Data as a function of the step: sources, tokenizers, the token cache with its packing, batches and
what is done to them. NumPy only."""

from t2x.data.batches import Batches, evaluation_batches
from t2x.data.cache import Rows, token_rows
from t2x.data.images import PrepareImage
from t2x.data.inspect import inspect_batches
from t2x.data.masking import MaskTokens
from t2x.data.packing import ConcatenateAndSplit, PackPairs, PadPairs
from t2x.data.prefetching import prefetch
from t2x.data.tokenizers import (
  Bytes,
  Characters,
  SentencePiece,
  Tokenizer,
  TokenizerConfig,
  load_tokenizer,
)

__all__ = [
  'Batches',
  'Bytes',
  'Characters',
  'ConcatenateAndSplit',
  'MaskTokens',
  'PackPairs',
  'PadPairs',
  'PrepareImage',
  'Rows',
  'SentencePiece',
  'Tokenizer',
  'TokenizerConfig',
  'evaluation_batches',
  'inspect_batches',
  'load_tokenizer',
  'prefetch',
  'token_rows',
]
