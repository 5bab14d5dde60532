"""The parts that are run through the contracts."""

import functools

from t2x.layers import (
  MLP,
  TUPE,
  AdditiveScores,
  AddressPositions,
  AlongAxes,
  AttentionFree,
  BilinearScores,
  ByChance,
  Capacity,
  CombinedPositions,
  ConvBias,
  ConvS2SAttention,
  CoPE,
  CosineScores,
  DenseScores,
  DifferentialHeads,
  Disentangled,
  DotProductScores,
  DoublyStochastic,
  Dropless,
  DynamicConvolution,
  EluPlusOne,
  ExpertChoice,
  FastWeights,
  FavorPlus,
  FinalVectors,
  FixedVector,
  FlowAttention,
  ForgetGate,
  FromSource,
  Full,
  FullBias,
  GatedContext,
  GatedConvolution,
  GatedDeltaNet,
  GatedHeads,
  GatedMLP,
  GlobalLocalAttention,
  GridBias,
  GridBranch,
  GridConvolution,
  GridMLP,
  GridRoPE,
  GRUCell,
  HopfieldScores,
  LatentKeyValues,
  LayerNorm,
  LearnedValueResidual,
  LightweightConvolution,
  LinearAttention,
  Linformer,
  LoadBias,
  LocalBias,
  LowRankQueries,
  LSHAttention,
  Mamba2,
  MaxoutOutput,
  MeanVectors,
  MemoryCompressedAttention,
  MixtureOfExperts,
  MultiHeadAttention,
  NoBias,
  NormedHeads,
  NystromAttention,
  Parallel,
  PerHead,
  PersistentMemory,
  Plus,
  PowerNorm,
  PredictionHeads,
  ProbSparseAttention,
  QuadraticGridBias,
  Recurrent,
  RecurrentDecoder,
  ReducedKeyValues,
  RelativeSinusoids,
  RMSNorm,
  RoPE,
  RoutingAttention,
  ScalarGatedHeads,
  ScaledResidual,
  Sequential,
  SharedValues,
  ShawPositions,
  SinkhornAttention,
  SpatialGating,
  SplitKeyValues,
  SplitQueries,
  StateBeforeDecoder,
  StateOutput,
  SwitchFeedForward,
  Synthesizer,
  T5Bias,
  TalkingHeads,
  TokenMLP,
  TokenShift,
  TopK,
  WeightNormLinear,
  Windowed,
  WithinGroups,
  XLPositions,
  ZLoss,
  ones,
  sigmoid,
  silu,
  zeros,
)
from t2x.layers.building import building

part = functools.partial
attention = part(MultiHeadAttention, num_heads=4)
offsets = part(QuadraticGridBias, num_heads=4)
favor = part(FavorPlus, num_features=64)
experts = part(
  MixtureOfExperts, num_experts=4, expert=part(GatedMLP, hidden_dim=24, dropout_rate=0.1)
)


def in_both_directions(d_model, *, rngs):
  with building(pattern=Full()):
    return Recurrent(d_model, input_dropout=0.1, state_dropout=0.1, rngs=rngs)


# The arguments of `Subject`.
PARTS = {
  'attention with grouped heads and rotary positions': {
    'build': part(attention, num_kv_heads=2, dropout_rate=0.1),
    'encoding': RoPE,
  },
  'attention with the bias of T5': {
    'build': part(attention, qk_norm=RMSNorm),
    'encoding': part(T5Bias, num_heads=4, bidirectional=True),
  },
  'attention with the positions of Shaw': {
    'build': attention,
    'encoding': part(ShawPositions, head_dim=4, max_distance=3, values=True),
  },
  'windows of a grid': {
    'build': part(Windowed, mixer=part(attention, num_heads=2, dropout_rate=0.1), size=2, shift=1),
    'encoding': part(GridBias, num_heads=2, height=2, width=2),
    'grid': (4, 3),
  },
  'axes of a grid': {
    'build': part(AlongAxes, mixer=part(attention, num_heads=2, dropout_rate=0.1), axes=[0]),
    'grid': (4, 3),
  },
  'rotations by row and column': {'build': attention, 'encoding': GridRoPE, 'grid': (4, 3)},
  'offsets of rows and columns': {'build': attention, 'encoding': offsets, 'grid': (4, 3)},
  'convolutions of a grid': {
    'build': part(
      GridBranch,
      parts={'a': part(GridConvolution, factor=0.5), 'b': part(GridConvolution, width=16)},
    ),
    'grid': (4, 3),
  },
  'attention to squares of a grid': {
    'build': part(attention, dropout_rate=0.1, key_values=part(ReducedKeyValues, ratio=2)),
    'grid': (4, 3),
  },
  'MLP of neighbours in a grid': {
    'build': part(GridMLP, hidden_dim=24, dropout_rate=0.1),
    'grid': (4, 3),
  },
  'matrix over tokens': {'build': part(TokenMLP, length=12, hidden_dim=8), 'grid': (4, 3)},
  'gates of a matrix over tokens': {'build': part(SpatialGating, length=12, hidden_dim=8)},
  'attention with norms and biases of projections': {
    'build': part(
      attention,
      num_kv_heads=2,
      use_bias=('q', 'v'),
      qk_norm={'k': PerHead, 'v': part(RMSNorm, use_scale=False)},
    )
  },
  'attention with cosine scores': {'build': part(attention, scores=CosineScores)},
  'attention with steps of retrieval': {
    'build': part(attention, num_kv_heads=2, scores=part(HopfieldScores, num_steps=2)),
    'encoding': RoPE,
  },
  'attention with a soft cap and sinks': {
    'build': part(attention, scores=part(DotProductScores, soft_cap=2.0, sink=zeros()))
  },
  'synthesizer': {
    'build': part(
      Synthesizer, num_heads=4, scores=part(DenseScores, max_length=16), mix=Plus, dropout_rate=0.1
    )
  },
  'lightweight convolution': {
    'build': part(LightweightConvolution, num_heads=4, kernel_size=3, dropout_rate=0.1)
  },
  'dynamic convolution': {
    'build': part(DynamicConvolution, num_heads=4, kernel_size=3, dropout_rate=0.1)
  },
  'gated convolution': {'build': GatedConvolution},
  'dilated convolution with weight normalisation': {
    'build': part(GatedConvolution, kernel_size=4, dilation=2, linear=WeightNormLinear)
  },
  'convolution before an attention to the source': {
    'build': part(
      Sequential,
      parts={'mixer': GatedConvolution, 'cross': ConvS2SAttention},
      wiring=part(ScaledResidual, dropout_rate=0.1),
    )
  },
  'Linformer': {
    'build': part(Linformer, num_heads=4, max_length=12, projected_length=5, dropout_rate=0.1)
  },
  'global and local attention': {
    'build': part(GlobalLocalAttention, num_heads=4, dropout_rate=0.1)
  },
  'ProbSparse attention': {'build': part(ProbSparseAttention, num_heads=4, factor=1)},
  'Nystrom attention': {'build': part(NystromAttention, num_heads=4, num_landmarks=4, conv_size=3)},
  'memory-compressed attention': {
    'build': part(MemoryCompressedAttention, num_heads=4, dropout_rate=0.1)
  },
  'linear attention': {'build': part(LinearAttention, num_heads=4, chunk=5)},
  'linear attention with random features': {
    'build': part(LinearAttention, num_heads=4, chunk=5, features=favor)
  },
  'linear attention with redrawn features': {
    'build': part(LinearAttention, num_heads=4, chunk=5, features=part(favor, redraw_every=5))
  },
  'flow attention': {'build': part(FlowAttention, num_heads=4, chunk=5)},
  'gated DeltaNet': {'build': part(GatedDeltaNet, num_heads=4, chunk=5)},
  'Mamba-2': {'build': part(Mamba2, num_heads=4, head_dim=6, state_dim=5, num_groups=2, chunk=5)},
  # Of four features DPFP has sums so small that bfloat16 changes their shares.
  'fast weights': {'build': part(FastWeights, num_heads=4, chunk=5, features=EluPlusOne)},
  'AFT-simple': {'build': part(AttentionFree, bias=NoBias, num_heads=4)},
  'AFT-local': {
    'build': part(AttentionFree, bias=part(LocalBias, max_length=12, window=3), num_heads=2)
  },
  'AFT-conv': {'build': part(AttentionFree, bias=part(ConvBias, window=3), num_heads=4)},
  'AFT-full': {
    'build': part(AttentionFree, bias=part(FullBias, max_length=12, chunk=5), num_heads=2)
  },
  # With this seed no query is so close to the border of two hashes that bfloat16 changes its hash.
  'LSH attention': {
    'build': part(LSHAttention, num_heads=4, num_buckets=2, chunk=4, seed=3, dropout_rate=0.1)
  },
  'Sinkhorn attention': {'build': part(SinkhornAttention, num_heads=4, block=4, dropout_rate=0.1)},
  # With these numbers bfloat16 changes no member of a cluster.
  'routing attention': {
    'build': part(RoutingAttention, num_heads=4, num_clusters=2, window=7, dropout_rate=0.1)
  },
  'attention with value residuals': {'build': part(attention, values=LearnedValueResidual)},
  'attention with talking heads': {
    'build': part(attention, num_kv_heads=2, scores=TalkingHeads),
    'encoding': part(T5Bias, num_heads=4, bidirectional=True),
  },
  'attention with a memory': {
    'build': part(attention, num_kv_heads=2, memory=part(PersistentMemory, num=3)),
    'encoding': part(T5Bias, num_heads=4, bidirectional=True),
  },
  'attention with gated heads': {'build': part(attention, head_outputs=GatedHeads)},
  'attention with a gate per head': {
    'build': part(attention, head_outputs=part(ScalarGatedHeads, activation=silu, bias_init=ones()))
  },
  'attention with forget gates': {
    'build': part(attention, num_kv_heads=2),
    'encoding': part(ForgetGate, num_heads=4),
  },
  'attention with two encodings': {
    'build': attention,
    'encoding': part(
      CombinedPositions, parts=[RoPE, part(T5Bias, num_heads=4, bidirectional=True)]
    ),
  },
  'latent attention': {
    'build': part(
      attention,
      head_dim=8,
      value_dim=6,
      queries=part(LowRankQueries, rank=6),
      key_values=part(LatentKeyValues, rank=10, rotated_dim=4),
    ),
    'encoding': RoPE,
  },
  'attention over states in parts': {
    'build': part(
      attention,
      num_kv_heads=1,
      value_dim=8,
      queries=part(SplitQueries, num_parts=2),
      key_values=part(SplitKeyValues, num_parts=2),
      head_outputs=part(PredictionHeads, num_parts=2),
    )
  },
  'differential attention': {
    'build': part(attention, value_dim=8, key_values=SharedValues, head_outputs=DifferentialHeads),
    'encoding': RoPE,
  },
  'attention with a norm of the heads': {'build': part(attention, head_outputs=NormedHeads)},
  'token shift of attention': {
    'build': part(TokenShift, sublayer=part(attention, num_kv_heads=2)),
    'encoding': RoPE,
  },
  'token shift of an MLP': {'build': part(TokenShift, sublayer=part(MLP, hidden_dim=24))},
  'attention with TUPE': {'build': attention, 'encoding': part(TUPE, num_heads=4, max_length=16)},
  'attention with the positions of Transformer-XL': {
    'build': part(attention, num_kv_heads=2),
    'encoding': part(XLPositions, num_heads=4),
  },
  'attention with relative sinusoids': {'build': attention, 'encoding': RelativeSinusoids},
  'attention with disentangled positions': {
    'build': part(attention, num_kv_heads=2),
    'encoding': part(Disentangled, num_buckets=4, max_distance=8),
  },
  'attention with contextual positions': {
    'build': part(attention, num_kv_heads=2),
    'encoding': part(CoPE, head_dim=4, max_positions=6),
  },
  'attention with addresses': {'build': attention, 'encoding': AddressPositions},
  'attention with additive scores': {
    'build': part(attention, num_kv_heads=2, scores=AdditiveScores)
  },
  'attention with bilinear scores': {
    'build': part(attention, num_kv_heads=2, scores=BilinearScores)
  },
  'mixture of experts': {
    'build': part(
      SwitchFeedForward, hidden_dim=24, num_experts=4, capacity_factor=4.0, dropout_rate=0.1
    )
  },
  'mixture of two experts per token': {'build': part(experts, dispatch=Capacity(factor=2.0))},
  'experts that choose their tokens': {
    'build': part(
      experts,
      expert=part(GatedMLP, hidden_dim=24),
      router=part(ExpertChoice, jitter=0.1),
      dispatch=Capacity(factor=1.0),
    )
  },
  'experts of groups, by chance': {
    'build': part(
      experts,
      expert=part(GatedMLP, hidden_dim=24),
      router=part(
        TopK,
        scoring=sigmoid,
        selection=WithinGroups(num_groups=2, num_chosen=1),
        by_chance=ByChance(),
        bias=LoadBias,
        losses=(ZLoss(),),
        jitter=0.1,
      ),
      dispatch=Capacity(factor=2.0),
    )
  },
  'mixture of experts without a capacity': {'build': part(experts, dispatch=Dropless())},
  'cross-attention': {
    'build': part(FromSource, sublayer=part(attention, num_kv_heads=2, dropout_rate=0.1))
  },
  'recurrent layer': {'build': part(Recurrent, input_dropout=0.1, state_dropout=0.1)},
  'recurrent layer with gated units': {'build': part(Recurrent, cell=GRUCell)},
  'recurrent layer in both directions': {'build': in_both_directions},
  'recurrent decoder from one vector': {'build': part(Recurrent, initial=FinalVectors)},
  'recurrent decoder with the state before': {
    'build': part(StateBeforeDecoder, cell=GRUCell, output=MaxoutOutput)
  },
  'one vector of the source': {'build': FixedVector},
  'captioning decoder': {
    'build': part(
      DoublyStochastic,
      sublayer=part(
        StateBeforeDecoder,
        attention=GatedContext,
        initial=MeanVectors,
        output=StateOutput,
      ),
    )
  },
  'recurrent decoder': {'build': RecurrentDecoder},
  'ConvS2S attention': {'build': ConvS2SAttention},
  'MLP': {'build': part(MLP, hidden_dim=24, dropout_rate=0.1)},
  'MLP with a norm': {'build': part(MLP, hidden_dim=24, norm=LayerNorm)},
  'gated MLP with a norm': {'build': part(GatedMLP, hidden_dim=24, norm=RMSNorm)},
  'attention beside an MLP': {
    'build': part(
      Parallel,
      parts={
        'attention': part(attention, dropout_rate=0.1),
        'simple': part(AttentionFree, bias=NoBias, num_heads=4),
        'feed_forward': part(MLP, hidden_dim=24, dropout_rate=0.1),
      },
      norm=LayerNorm,
      own_norms={'feed_forward': RMSNorm},
    ),
    'encoding': RoPE,
  },
  'power norm': {'build': part(PowerNorm, num_groups=2)},
  'gated MLP': {'build': part(GatedMLP, hidden_dim=24, dropout_rate=0.1)},
}
