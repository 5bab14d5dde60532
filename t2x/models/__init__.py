"""Models built of layers: residual blocks, stacks of blocks, encoders and decoders, output heads, and
the text and image models that combine them."""

from t2x.layers import Embedder
from t2x.models.block import Block, ParallelBlock, SublayerBlock
from t2x.models.bodies import Decoder, Encoder, final_norm_if_needed
from t2x.models.classifiers import (
  Classifier,
  PooledClassifier,
  Pooler,
  SequenceClassifier,
  TokenClassifier,
  first_token,
  last_token,
  mean_tokens,
)
from t2x.models.encoder_decoder import EncoderDecoder
from t2x.models.global_tokens import GlobalTokens
from t2x.models.heads import LMHead, LogitHead, MaskedLMHead, TiedHead
from t2x.models.interfaces import (
  DecodingModel,
  Head,
  Model,
  Output,
  OutputHead,
  TextModel,
)
from t2x.models.language_model import LanguageModel
from t2x.models.mixture_of_softmaxes import MixtureOfSoftmaxes
from t2x.models.reversible import ReversibleStack, concatenated_streams, mean_of_streams
from t2x.models.segments import Segments
from t2x.models.spec import Inputs, ModelSpec, OutputKind
from t2x.models.stack import Stack
from t2x.models.stages import Stages
from t2x.models.vision import VisionTransformer

__all__ = [
  'Block',
  'Classifier',
  'Decoder',
  'DecodingModel',
  'Embedder',
  'Encoder',
  'EncoderDecoder',
  'GlobalTokens',
  'Head',
  'Inputs',
  'LMHead',
  'LanguageModel',
  'LogitHead',
  'MaskedLMHead',
  'MixtureOfSoftmaxes',
  'Model',
  'ModelSpec',
  'Output',
  'OutputHead',
  'OutputKind',
  'ParallelBlock',
  'PooledClassifier',
  'Pooler',
  'ReversibleStack',
  'Segments',
  'SequenceClassifier',
  'Stack',
  'Stages',
  'SublayerBlock',
  'TextModel',
  'TiedHead',
  'TokenClassifier',
  'VisionTransformer',
  'concatenated_streams',
  'final_norm_if_needed',
  'first_token',
  'last_token',
  'mean_of_streams',
  'mean_tokens',
]
