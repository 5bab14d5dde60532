"""Data pipeline in NumPy: sources, tokenizers, token cache, packing, transforms and batches."""

from t2x.data.batches import Batches, Chain, evaluation_batches
from t2x.data.best_fit import BestFitDocuments, BestFitPairs
from t2x.data.cache import Rows, token_rows
from t2x.data.corruption import CorruptSpans
from t2x.data.fetch import fetch
from t2x.data.images import Augmentation, PrepareImage, check_label
from t2x.data.inspect import inspect_batches
from t2x.data.labelled import LabelledPlan, LabelledTexts, LabelledWords
from t2x.data.masking import MaskTokens
from t2x.data.overlap import Overlap, find_overlap
from t2x.data.packing import (
  ConcatenateAndSplit,
  DocumentPlan,
  FullRows,
  PackPairs,
  PadPairs,
  PairPlan,
  RestartPositions,
)
from t2x.data.prefetching import prefetch
from t2x.data.rand_augment import RandAugment
from t2x.data.resegmenting import Resegment, SampledPieces
from t2x.data.skipping import Skipping
from t2x.data.sources import (
  TFDS,
  TSV,
  BabelDates,
  BrownWords,
  Deduplicated,
  Digits,
  FactbookSpans,
  FashionMNIST,
  JsonLines,
  LibreOfficeHelp,
  Part,
  Resized,
  SentimentSnippets,
  Source,
  StandardLibrary,
  TextFiles,
  brown_tags,
  label_values,
  name_spans,
  parts_of_speech,
)
from t2x.data.spans import SpanWindows
from t2x.data.statistics import Statistics, split_statistics, write_statistics
from t2x.data.tokenizers import (
  BPE,
  Bytes,
  Characters,
  HubTokenizer,
  RunTokenizer,
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
  'Augmentation',
  'BabelDates',
  'Batches',
  'BestFitDocuments',
  'BestFitPairs',
  'BrownWords',
  'Bytes',
  'Chain',
  'Characters',
  'ConcatenateAndSplit',
  'CorruptSpans',
  'Deduplicated',
  'Digits',
  'DocumentPlan',
  'FactbookSpans',
  'FashionMNIST',
  'FullRows',
  'HubTokenizer',
  'JsonLines',
  'LabelledPlan',
  'LabelledTexts',
  'LabelledWords',
  'LibreOfficeHelp',
  'MaskTokens',
  'Overlap',
  'PackPairs',
  'PadPairs',
  'PairPlan',
  'Part',
  'PrepareImage',
  'RandAugment',
  'Resegment',
  'Resized',
  'RestartPositions',
  'Rows',
  'RunTokenizer',
  'SampledPieces',
  'SentencePiece',
  'SentimentSnippets',
  'Skipping',
  'Source',
  'SpanWindows',
  'StandardLibrary',
  'Statistics',
  'TextFiles',
  'Tokenizer',
  'TokenizerConfig',
  'WordPiece',
  'brown_tags',
  'check_label',
  'evaluation_batches',
  'fetch',
  'find_overlap',
  'inspect_batches',
  'label_values',
  'load_hub_tokenizer',
  'load_tokenizer',
  'name_spans',
  'parts_of_speech',
  'prefetch',
  'split_statistics',
  'token_rows',
  'write_statistics',
]
