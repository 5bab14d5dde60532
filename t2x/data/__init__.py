"""Data as a function of the step: sources, tokenizers, the token cache with its packing, batches and
what is done to them. NumPy only."""

from t2x.data.batches import Batches, Chain, evaluation_batches
from t2x.data.cache import Rows, token_rows
from t2x.data.fetch import fetch
from t2x.data.images import PrepareImage
from t2x.data.inspect import inspect_batches
from t2x.data.masking import MaskTokens
from t2x.data.packing import ConcatenateAndSplit, PackPairs, PadPairs
from t2x.data.prefetching import prefetch
from t2x.data.resegmenting import Resegment, SampledPieces
from t2x.data.skipping import Skipping
from t2x.data.sources import (
  TFDS,
  TSV,
  BabelDates,
  Digits,
  FashionMNIST,
  JsonLines,
  LibreOfficeHelp,
  Source,
  StandardLibrary,
  TextFiles,
)
from t2x.data.tokenizers import (
  BPE,
  Bytes,
  Characters,
  HubTokenizer,
  SentencePiece,
  Tokenizer,
  TokenizerConfig,
  WordPiece,
  load_hub_tokenizer,
  load_tokenizer,
)

__all__ = [
  'BPE',
  'TFDS',
  'TSV',
  'BabelDates',
  'Batches',
  'Bytes',
  'Chain',
  'Characters',
  'ConcatenateAndSplit',
  'Digits',
  'FashionMNIST',
  'HubTokenizer',
  'JsonLines',
  'LibreOfficeHelp',
  'MaskTokens',
  'PackPairs',
  'PadPairs',
  'PrepareImage',
  'Resegment',
  'Rows',
  'SampledPieces',
  'SentencePiece',
  'Skipping',
  'Source',
  'StandardLibrary',
  'TextFiles',
  'Tokenizer',
  'TokenizerConfig',
  'WordPiece',
  'evaluation_batches',
  'fetch',
  'inspect_batches',
  'load_hub_tokenizer',
  'load_tokenizer',
  'prefetch',
  'token_rows',
]
