"""Data pipeline in NumPy: sources, tokenizers, token cache, packing, transforms and batches."""

from t2x.data.batches import Batches, Chain, evaluation_batches
from t2x.data.cache import Rows, token_rows
from t2x.data.corruption import CorruptSpans
from t2x.data.crops import CentralCrop, Crop, CropAndResize, RandomResizedCrop
from t2x.data.fetch import fetch
from t2x.data.images import Augmentation, PrepareImage, channel_statistics, check_label
from t2x.data.inspect import inspect_batches
from t2x.data.labelled import LabelledPlan, LabelledTexts, LabelledWords
from t2x.data.masking import MaskTokens
from t2x.data.packing import ConcatenateAndSplit, FullRows, PackPairs, PadPairs
from t2x.data.prefetching import prefetch
from t2x.data.rand_augment import RandAugment
from t2x.data.resegmenting import Resegment, SampledPieces
from t2x.data.skipping import Skipping
from t2x.data.sources import (
  TFDS,
  TSV,
  BabelDates,
  BrownWords,
  Digits,
  FactbookSpans,
  FashionMNIST,
  HeldOut,
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
  'BrownWords',
  'Bytes',
  'CentralCrop',
  'Chain',
  'Characters',
  'ConcatenateAndSplit',
  'CorruptSpans',
  'Crop',
  'CropAndResize',
  'Digits',
  'FactbookSpans',
  'FashionMNIST',
  'FullRows',
  'HeldOut',
  'HubTokenizer',
  'JsonLines',
  'LabelledPlan',
  'LabelledTexts',
  'LabelledWords',
  'LibreOfficeHelp',
  'MaskTokens',
  'PackPairs',
  'PadPairs',
  'Part',
  'PrepareImage',
  'RandAugment',
  'RandomResizedCrop',
  'Resegment',
  'Resized',
  'Rows',
  'RunTokenizer',
  'SampledPieces',
  'SentencePiece',
  'SentimentSnippets',
  'Skipping',
  'Source',
  'SpanWindows',
  'StandardLibrary',
  'TextFiles',
  'Tokenizer',
  'TokenizerConfig',
  'WordPiece',
  'brown_tags',
  'channel_statistics',
  'check_label',
  'evaluation_batches',
  'fetch',
  'inspect_batches',
  'label_values',
  'load_hub_tokenizer',
  'load_tokenizer',
  'name_spans',
  'parts_of_speech',
  'prefetch',
  'token_rows',
]
