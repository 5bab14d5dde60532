"""Layers of Transformers and the interfaces between them.

A config can name everything in `__all__`. The package does not depend on tasks, data, meshes or configs.
"""

from t2x.layers.attention.cache import InputMemory, KeyValueCache, SourceCache
from t2x.layers.attention.head_outputs import GatedHeads, HeadOutputs, NormedHeads, ScalarGatedHeads
from t2x.layers.attention.kernels import (
  XLA,
  AttentionInputs,
  Auto,
  Blockwise,
  Dense,
  DotProduct,
  Kernel,
  Logits,
  PallasMHA,
  PositionTerms,
  Ring,
  Splash,
)
from t2x.layers.attention.masks import attention_mask
from t2x.layers.attention.multi_head import MultiHeadAttention
from t2x.layers.attention.scores import (
  AdditiveScores,
  BilinearScores,
  CosineScores,
  DotProductScores,
  TalkingHeads,
)
from t2x.layers.attention.value_residual import LearnedValueResidual, ValueResidual
from t2x.layers.base import (
  Initializer,
  Linear,
  RowLayout,
  Tokens,
  dropout,
  param,
)
from t2x.layers.embeddings.token_embeddings import (
  Embedder,
  FactorisedEmbedding,
  PatchEmbedding,
  TextEmbedding,
  TokenEmbedding,
)
from t2x.layers.feed_forward.activations import (
  elu,
  gelu,
  gelu_exact,
  linear,
  quick_gelu,
  relu,
  relu_squared,
  selu,
  sigmoid,
  silu,
  softplus,
  swish,
  tanh,
)
from t2x.layers.feed_forward.experts import SwitchFeedForward
from t2x.layers.feed_forward.mlp import MLP, FeedForward, GatedMLP
from t2x.layers.initializers import (
  depth_scaled,
  fixup,
  he_normal,
  lecun_normal,
  normal,
  ones,
  truncated_normal,
  variance_scaling,
  width_normal,
  xavier_uniform,
  zeros,
)
from t2x.layers.interfaces import (
  NO_AUX,
  Aux,
  BranchWiring,
  Cache,
  Call,
  CrossSublayer,
  ExtrasSublayer,
  GridPositions,
  Merge,
  Norm,
  Result,
  Scores,
  Slots,
  Source,
  Sublayer,
  Wiring,
)
from t2x.layers.keys import initialized, named_key, stacked
from t2x.layers.mixers.attention_free import (
  AttentionFree,
  ConvBias,
  LocalBias,
  NoBias,
  PositionBias,
)
from t2x.layers.mixers.attention_free_full import FactorizedBias, FullBias
from t2x.layers.mixers.convolutions import DynamicConvolution, LightweightConvolution
from t2x.layers.mixers.feature_maps import (
  CallFeatures,
  EluPlusOne,
  FavorPlus,
  FeatureMap,
  ReluFeatures,
)
from t2x.layers.mixers.flow_attention import FlowAttention, FlowState
from t2x.layers.mixers.gated_delta import GatedDeltaNet
from t2x.layers.mixers.global_local import GlobalLocalAttention
from t2x.layers.mixers.linear_attention import LinearAttention, LinearState
from t2x.layers.mixers.linformer import Linformer
from t2x.layers.mixers.lsh_attention import LSHAttention
from t2x.layers.mixers.memory_compressed import CompressedMemory, MemoryCompressedAttention
from t2x.layers.mixers.nystrom import NystromAttention
from t2x.layers.mixers.routing_attention import RoutingAttention
from t2x.layers.mixers.sinkhorn_attention import SinkhornAttention
from t2x.layers.mixers.synthesizers import Plus, PlusAlpha, Replace, Synthesizer
from t2x.layers.mixers.synthetic_scores import (
  DenseScores,
  FactorizedDenseScores,
  FactorizedRandomScores,
  RandomScores,
)
from t2x.layers.mixers.token_shift import TokenShift
from t2x.layers.norms import LayerNorm, RMSNorm
from t2x.layers.patterns.algebra import (
  And,
  Causal,
  Full,
  Global,
  Marked,
  Not,
  Or,
  Pattern,
  Prefix,
  Window,
)
from t2x.layers.patterns.big_bird import BigBird
from t2x.layers.patterns.sparse import Blocks, Fixed, Strided
from t2x.layers.positions.common import (
  AddressPositions,
  ALiBi,
  LearnedPositions,
  NoPositions,
  RoPE,
  Sinusoidal,
  T5Bias,
)
from t2x.layers.positions.cope import CoPE
from t2x.layers.positions.disentangled import Disentangled
from t2x.layers.positions.encoding import PositionEncoding, Projections
from t2x.layers.positions.global_token_bias import GlobalTokenBias
from t2x.layers.positions.grids import LearnedGrid, SinusoidalGrid, resize_grid
from t2x.layers.positions.relative_sinusoids import RelativeSinusoids, XLPositions
from t2x.layers.positions.rope_scaling import LinearScaling, Llama3Scaling, RoPEScaling
from t2x.layers.positions.shaw import ShawPositions
from t2x.layers.positions.tupe import TUPE
from t2x.layers.vision.patch_merging import PatchMerging
from t2x.layers.wiring.deep import (
  Admin,
  DeepNorm,
  deep_norm_init,
  sub_ln_init,
  t_fixup_decoder,
  t_fixup_encoder,
)
from t2x.layers.wiring.hyper_connections import DynamicHyperConnections, HyperConnections
from t2x.layers.wiring.residual import (
  BranchNorm,
  FixupWiring,
  LayerScale,
  NoNorm,
  PostNorm,
  PreNorm,
  ReZero,
  Sandwich,
)

__all__ = [
  'MLP',
  'NO_AUX',
  'TUPE',
  'XLA',
  'ALiBi',
  'AdditiveScores',
  'AddressPositions',
  'Admin',
  'And',
  'AttentionFree',
  'AttentionInputs',
  'Auto',
  'Aux',
  'BigBird',
  'BilinearScores',
  'Blocks',
  'Blockwise',
  'BranchNorm',
  'BranchWiring',
  'Cache',
  'Call',
  'CallFeatures',
  'Causal',
  'CoPE',
  'CompressedMemory',
  'ConvBias',
  'CosineScores',
  'CrossSublayer',
  'DeepNorm',
  'Dense',
  'DenseScores',
  'Disentangled',
  'DotProduct',
  'DotProductScores',
  'DynamicConvolution',
  'DynamicHyperConnections',
  'EluPlusOne',
  'Embedder',
  'ExtrasSublayer',
  'FactorisedEmbedding',
  'FactorizedBias',
  'FactorizedDenseScores',
  'FactorizedRandomScores',
  'FavorPlus',
  'FeatureMap',
  'FeedForward',
  'Fixed',
  'FixupWiring',
  'FlowAttention',
  'FlowState',
  'Full',
  'FullBias',
  'GatedDeltaNet',
  'GatedHeads',
  'GatedMLP',
  'Global',
  'GlobalLocalAttention',
  'GlobalTokenBias',
  'GridPositions',
  'HeadOutputs',
  'HyperConnections',
  'Initializer',
  'InputMemory',
  'Kernel',
  'KeyValueCache',
  'LSHAttention',
  'LayerNorm',
  'LayerScale',
  'LearnedGrid',
  'LearnedPositions',
  'LearnedValueResidual',
  'LightweightConvolution',
  'Linear',
  'LinearAttention',
  'LinearScaling',
  'LinearState',
  'Linformer',
  'Llama3Scaling',
  'LocalBias',
  'Logits',
  'Marked',
  'MemoryCompressedAttention',
  'Merge',
  'MultiHeadAttention',
  'NoBias',
  'NoNorm',
  'NoPositions',
  'Norm',
  'NormedHeads',
  'Not',
  'NystromAttention',
  'Or',
  'PallasMHA',
  'PatchEmbedding',
  'PatchMerging',
  'Pattern',
  'Plus',
  'PlusAlpha',
  'PositionBias',
  'PositionEncoding',
  'PositionTerms',
  'PostNorm',
  'PreNorm',
  'Prefix',
  'Projections',
  'RMSNorm',
  'RandomScores',
  'ReZero',
  'RelativeSinusoids',
  'ReluFeatures',
  'Replace',
  'Result',
  'Ring',
  'RoPE',
  'RoPEScaling',
  'RoutingAttention',
  'RowLayout',
  'Sandwich',
  'ScalarGatedHeads',
  'Scores',
  'ShawPositions',
  'SinkhornAttention',
  'Sinusoidal',
  'SinusoidalGrid',
  'Slots',
  'Source',
  'SourceCache',
  'Splash',
  'Strided',
  'Sublayer',
  'SwitchFeedForward',
  'Synthesizer',
  'T5Bias',
  'TalkingHeads',
  'TextEmbedding',
  'TokenEmbedding',
  'TokenShift',
  'Tokens',
  'ValueResidual',
  'Window',
  'Wiring',
  'XLPositions',
  'attention_mask',
  'deep_norm_init',
  'depth_scaled',
  'dropout',
  'elu',
  'fixup',
  'gelu',
  'gelu_exact',
  'he_normal',
  'initialized',
  'lecun_normal',
  'linear',
  'named_key',
  'normal',
  'ones',
  'param',
  'quick_gelu',
  'relu',
  'relu_squared',
  'resize_grid',
  'selu',
  'sigmoid',
  'silu',
  'softplus',
  'stacked',
  'sub_ln_init',
  'swish',
  't_fixup_decoder',
  't_fixup_encoder',
  'tanh',
  'truncated_normal',
  'variance_scaling',
  'width_normal',
  'xavier_uniform',
  'zeros',
]
