"""What the parameters of all parts are: kind, weight decay, rule of Muon.

    python -m tests.golden.parameter_kinds            prints the table
    python -m tests.golden.parameter_kinds --write    rewrites tests/golden/parameter_kinds.txt

Read the lines that change before you commit the file: no other test knows what a parameter is for.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from t2x import layers, models
from t2x.base.text_table import text_table
from t2x.domains.detection import DETR, YOLOS, BoxHead
from t2x.domains.questions import AnswerClassifier, EmbeddedInput, OneStream
from t2x.domains.retrieval import Tower, TwoTower, VectorProjection
from t2x.domains.segmentation import PixelClassifier
from t2x.domains.series import (
  AutoregressiveForecaster,
  CalendarTables,
  CircularConvolution,
  Decomposition,
  Forecaster,
  PatchNetwork,
  SeriesPatches,
  SinusoidTables,
)
from t2x.domains.speech import AudioStem
from t2x.domains.video import Tubelets
from t2x.layers.arrays import name_of
from t2x.train.optimizers import matrix_dimensions
from t2x.train.params import Blueprint
from tests.golden.parameters import blueprint_of

FILE = Path(__file__).with_suffix('.txt')
CONFIGS = Path(__file__).parents[2] / 'configs'
# Width, heads, head_dim, vocabulary, length.
W, H, D, V, N = 16, 4, 4, 30, 8

ATTENTION = partial(layers.MultiHeadAttention, num_heads=H)
BLOCK = partial(models.Block, mixer=ATTENTION, feed_forward=partial(layers.MLP, hidden_dim=32))
STACK = partial(models.Stack, num_layers=2, blocks=[BLOCK])
EMBEDDING = partial(layers.TokenEmbedding, vocab_size=V)
TOWER = partial(Tower, d_model=W, embedding=EMBEDDING, body=partial(models.Encoder, stack=STACK))
PATCHES = partial(layers.PatchEmbedding, patch_size=2)


def _width(*parts: Callable[..., Any], **settings: Any) -> list[Callable[..., Any]]:
  return [partial(part, W, **settings) for part in parts]


def _attention(name: str, *parts: Any) -> list[Callable[..., Any]]:
  return [partial(ATTENTION, W, **{name: part}) for part in parts]


def _experts(*routers: Any) -> list[Callable[..., Any]]:
  mlp = partial(layers.MLP, hidden_dim=32)
  return _width(
    *(partial(layers.MixtureOfExperts, num_experts=3, expert=mlp, router=r) for r in routers)
  )


def _free(*biases: Any) -> list[Callable[..., Any]]:
  return [partial(layers.AttentionFree, W, num_heads=H, bias=bias) for bias in biases]


FORECASTER = partial(
  AutoregressiveForecaster,
  d_model=W,
  channels=1,
  context=N,
  horizon=2,
  lags=(1, 2),
  encoder=partial(models.Encoder, stack=STACK),
  decoder=partial(
    models.Decoder,
    stack=partial(models.Stack, num_layers=2, blocks=[partial(BLOCK, cross=ATTENTION)]),
  ),
)
PARTS = [
  *_width(layers.MLP, layers.GatedMLP, hidden_dim=32, norm=layers.LayerNorm),
  *_width(layers.GatedMLP, hidden_dim=32, use_bias=True),
  *_width(layers.SwitchFeedForward, hidden_dim=32, num_experts=3),
  *_experts(layers.TopK, layers.ExpertChoice, partial(layers.TopK, bias=layers.LoadBias)),
  *_width(layers.TokenShift, sublayer=ATTENTION),
  *_attention('qk_norm', layers.RMSNorm, layers.PerHead),
  *_attention('qk_norm', partial(layers.JointNorm, norm=layers.LayerNorm)),
  *_width(partial(layers.JointNorm, norm=layers.LayerNorm)),
  *_attention('head_outputs', layers.GatedHeads, layers.ScalarGatedHeads, layers.NormedHeads),
  *_attention('head_outputs', layers.DifferentialHeads),
  *_attention(
    'key_values', layers.SharedValues, partial(layers.LatentKeyValues, rank=6, rotated_dim=2)
  ),
  *_attention('key_values', partial(layers.ReducedKeyValues, ratio=2)),
  *_attention('memory', partial(layers.PersistentMemory, num=3)),
  *_attention('queries', partial(layers.LowRankQueries, rank=6)),
  *_attention('scores', partial(layers.HopfieldScores, num_steps=2)),
  *_attention('head_outputs', partial(layers.PredictionHeads, num_parts=2)),
  *_attention('queries', partial(layers.SplitQueries, num_parts=2)),
  partial(ATTENTION, W, value_dim=2, key_values=partial(layers.SplitKeyValues, num_parts=2)),
  *_attention('values', layers.ValueResidual, layers.LearnedValueResidual),
  *_attention('scores', layers.AdditiveScores, layers.BilinearScores, layers.CosineScores),
  *_attention('scores', layers.TalkingHeads, partial(layers.DotProductScores, sink=layers.zeros())),
  *(
    partial(layers.Synthesizer, W, num_heads=H, scores=scores, mix=mix)
    for scores, mix in (
      (partial(layers.DenseScores, max_length=N), layers.PlusAlpha),
      (partial(layers.FactorizedDenseScores, factors=(2, 4)), layers.Plus),
      (partial(layers.RandomScores, max_length=N), layers.Replace),
      (partial(layers.FactorizedRandomScores, max_length=N), layers.Plus),
    )
  ),
  *_width(layers.Linformer, num_heads=H, max_length=N, projected_length=5),
  *_width(layers.GlobalLocalAttention, layers.FlowAttention, layers.GatedDeltaNet, num_heads=H),
  *_width(layers.FastWeights, layers.Mamba2, num_heads=H),
  *_width(layers.NystromAttention, num_heads=H, num_landmarks=4, conv_size=3),
  *_width(layers.ProbSparseAttention, num_heads=H),
  *_width(layers.MemoryCompressedAttention, num_heads=H),
  *(
    partial(layers.LinearAttention, W, num_heads=H, features=features)
    for features in (layers.EluPlusOne, layers.ReluFeatures, layers.FavorPlus)
  ),
  *_width(layers.LSHAttention, num_heads=H, num_buckets=2, chunk=4),
  *_width(layers.SinkhornAttention, num_heads=H, block=4),
  *_width(layers.RoutingAttention, num_heads=H, num_clusters=2, window=3),
  *_width(layers.RecurrentDecoder, layers.ConvS2SAttention),
  *_width(layers.StateBeforeDecoder, cell=partial(layers.StackedCells, num_layers=2)),
  *_width(layers.StateBeforeDecoder, attention=layers.FixedVector, output=layers.MaxoutOutput),
  *_width(layers.RecurrentDecoder, initial=layers.FinalStates),
  *_width(layers.GatedContext),
  *_width(layers.StateBeforeDecoder, initial=layers.MeanVectors, output=layers.StateOutput),
  *_width(layers.DoublyStochastic, sublayer=layers.StateBeforeDecoder),
  *_width(layers.Recurrent, cell=layers.GRUCell, initial=layers.FinalVectors),
  *_width(layers.Recurrent, cell=layers.ElmanCell),
  *_width(layers.Recurrent, cell=partial(layers.LSTMCell, norm=layers.LayerNorm)),
  *_width(layers.LightweightConvolution, layers.DynamicConvolution, num_heads=H, kernel_size=3),
  *(
    partial(part, W, linear=layers.WeightNormLinear)
    for part in (layers.GatedConvolution, layers.Projection, layers.ConvS2SAttention)
  ),
  *_width(layers.PowerNorm),
  *_width(layers.Activation, activation=layers.tanh),
  *_width(layers.ScaledGradient, factor=0.5),
  *_width(layers.Parallel, layers.Sequential, parts={'mixer': layers.GatedConvolution}),
  *_free(layers.NoBias, partial(layers.LocalBias, max_length=N, window=3)),
  *_free(partial(layers.ConvBias, window=3)),
  *_free(*(partial(b, max_length=N) for b in (layers.FullBias, layers.FactorizedBias))),
  *_width(layers.NoPositions, layers.RoPE, layers.RelativeSinusoids, layers.AddressPositions),
  *_width(layers.Sinusoidal, layers.SinusoidalGrid, layers.ScaledSinusoidalGrid, layers.GridRoPE),
  *_width(layers.LearnedGrid, height=2, width=2),
  *_width(layers.LearnedFrames, frames=3),
  *_width(layers.GridBias, layers.LogGridBias, num_heads=H, height=2, width=2),
  *_width(layers.QuadraticGridBias, num_heads=H),
  *_width(layers.Windowed, mixer=ATTENTION, size=2),
  *_width(layers.AlongAxes, mixer=ATTENTION, axes=[0]),
  *_width(layers.MeanOverAxes, axes=[0]),
  *_width(layers.LearnedPositions, max_length=N),
  *_width(layers.ALiBi, num_heads=H),
  *_width(layers.ForgetGate, num_heads=H),
  *_width(layers.CombinedPositions, parts=[partial(layers.ForgetGate, num_heads=H)]),
  *_width(layers.T5Bias, num_heads=H, bidirectional=True),
  *_width(layers.GlobalTokenBias, layers.XLPositions, layers.FunnelPositions, num_heads=H),
  *_width(layers.ShawPositions, head_dim=D, values=True),
  *_width(layers.TUPE, num_heads=H, max_length=N),
  *_width(layers.Disentangled, num_buckets=4, max_distance=8, norm=layers.LayerNorm),
  *_width(layers.CoPE, head_dim=D),
  *_width(layers.TokenEmbedding, vocab_size=V, num_types=2),
  *_width(layers.FactorisedEmbedding, vocab_size=V, factor_dim=4, num_types=2, use_bias=True),
  *_width(layers.PatchEmbedding, patch_size=2, num_registers=2),
  *_width(layers.FlexiblePatches, kernel_size=2, num_registers=2),
  *_width(Tubelets, frames=2, patch_size=2),
  *_width(AudioStem, num_features=3),
  partial(Decomposition, N, window=3),
  partial(SinusoidTables, W, ('hour',)),
  partial(
    FORECASTER,
    calendar=('month', 'weekday', 'hour', 'minute'),
    encoder_values=CircularConvolution,
    tables=CalendarTables,
  ),
  partial(FORECASTER, calendar=('hour',)),
  partial(
    Forecaster,
    context=N,
    horizon=2,
    network=partial(
      PatchNetwork,
      d_model=W,
      embedding=partial(SeriesPatches, patch_length=3, stride=2),
      body=partial(models.Encoder, stack=STACK),
    ),
  ),
  *_width(layers.PatchMerging, layers.PreNorm, layers.PostNorm, layers.BranchNorm, layers.Sandwich),
  *_width(layers.GridConvolution, norm=partial(layers.GroupNorm, num_groups=4)),
  *_width(layers.GridMLP, hidden_dim=32),
  partial(layers.AllMLP, (8, 8, 8, W), width=32),
  *_width(layers.TokenMLP, layers.SpatialGating, length=N, hidden_dim=8),
  *_width(layers.FrozenBatchNorm, layers.MaxPool, layers.ActivatedResidual),
  *_width(layers.SqueezeExcitation, reduction=4),
  *_width(layers.GridBranch, parts={'convolution': layers.GridConvolution}),
  partial(layers.GridStem, W, parts={'convolution': partial(layers.GridConvolution, width=W)}),
  partial(
    layers.ResidualMerge, W, parts={'a': layers.GridConvolution}, shortcut=layers.GridConvolution
  ),
  *_width(layers.LayerScale, layers.NoNorm, layers.Plain, layers.ScaledResidual),
  *_width(layers.FixupWiring),
  *_width(layers.ReZero, norm=layers.RMSNorm),
  *_width(layers.HyperConnections, layers.DynamicHyperConnections, layers.ResiDual),
  *(
    partial(models.Stack, W, num_layers=2, blocks=[partial(BLOCK, wiring=wiring)])
    for wiring in (layers.DeepNorm, layers.Admin)
  ),
  partial(models.ParallelBlock, W, **BLOCK.keywords, feed_forward_norm=layers.LayerNorm),
  partial(models.SublayerBlock, W, sublayers={'mixer': ATTENTION}),
  *_width(
    models.AttentionPool, attention=ATTENTION, feed_forward=partial(layers.MLP, hidden_dim=32)
  ),
  *_width(AnswerClassifier, num_classes=2),
  *_width(models.CapsulePool, num_capsules=2),
  *_width(models.CapsuleLengths, num_classes=2),
  *_width(models.GlobalTokens, n=3, embedding=EMBEDDING),
  *(partial(head, W, V, use_bias=True) for head in (models.LMHead, models.TiedHead)),
  partial(models.MaskedLMHead, W, V),
  partial(models.MaskedLMHead, W, V, embedding_dim=4, norm=layers.RMSNorm),
  partial(models.MixtureOfSoftmaxes, W, V, num_softmaxes=2),
  partial(models.MultiTokenHead, W, V, body=partial(models.Decoder, stack=STACK)),
  partial(models.Pooler, W, V),
  partial(models.TokenClassifier, W, V, num_classes=3),
  partial(
    models.SequenceClassifier, W, V, classifier=partial(models.PooledClassifier, num_classes=3)
  ),
  partial(
    TwoTower,
    a=TOWER,
    b=TOWER,
    dim=8,
    bias=-10.0,
    b_projection=partial(VectorProjection, use_bias=True),
  ),
  *_width(models.Encoder, input_dim=8, stack=STACK, input_norm=layers.LayerNorm),
  *_width(models.Stages, stages=[STACK, STACK]),
  *_width(models.Funnel, stages=[STACK, STACK], pooling=STACK),
  *_width(models.Segments, stack=STACK, length=4, memory=4),
  *_width(models.ReversibleStack, models.TwoStreams, num_layers=2, blocks=[BLOCK]),
  partial(
    OneStream,
    d_model=W,
    inputs={'tokens': partial(EmbeddedInput, embedding=EMBEDDING)},
    body=partial(models.Encoder, stack=STACK),
    head=partial(models.Classifier, num_classes=3),
  ),
  *_width(EmbeddedInput, embedding=EMBEDDING, norm=layers.LayerNorm),
  partial(
    PixelClassifier,
    d_model=W,
    embedding=PATCHES,
    body=partial(models.Encoder, stack=STACK),
    positions=layers.NoPositions,
    head=partial(models.Classifier, num_classes=3),
  ),
  partial(
    models.FlexibleVisionTransformer,
    d_model=W,
    embedding=partial(layers.FlexiblePatches, kernel_size=2),
    positions=layers.NoPositions,
    body=partial(models.Encoder, stack=STACK),
    pool=models.first_token,
    head=partial(models.Classifier, num_classes=3),
  ),
  partial(
    DETR,
    d_model=W,
    num_queries=3,
    backbone=partial(
      models.VisionTransformer,
      d_model=8,
      embedding=partial(PATCHES, class_token=False),
      positions=layers.NoPositions,
      body=partial(models.Encoder, stack=STACK),
      head=None,
    ),
    encoder=partial(models.Encoder, stack=STACK),
    decoder=partial(
      models.Encoder,
      stack=partial(models.Stack, num_layers=2, blocks=[partial(BLOCK, cross=ATTENTION)]),
      final_norm=None,
    ),
    head=partial(BoxHead, num_classes=3, class_layers=3),
  ),
  partial(
    YOLOS,
    d_model=W,
    num_queries=3,
    embedding=partial(PATCHES, num_registers=3),
    positions=layers.NoPositions,
    body=partial(models.Encoder, stack=STACK),
    head=partial(BoxHead, num_classes=3),
  ),
  partial(
    models.DistilledVisionTransformer,
    d_model=W,
    embedding=partial(PATCHES, num_registers=1),
    positions=layers.NoPositions,
    body=partial(models.Encoder, stack=STACK),
    pool=models.first_token,
    head=partial(models.Classifier, num_classes=3),
    teacher_head=partial(models.Classifier, num_classes=3),
  ),
  partial(
    models.VisionTransformer,
    d_model=W,
    embedding=PATCHES,
    positions=layers.NoPositions,
    body=partial(models.Encoder, stack=STACK),
    pool=models.first_token,
    head=partial(models.Classifier, num_classes=3),
  ),
  partial(
    models.LanguageModel, d_model=W, embedding=EMBEDDING, body=partial(models.Decoder, stack=STACK)
  ),
  partial(
    models.WithGenerator,
    d_model=W,
    generator_dim=8,
    embedding=EMBEDDING,
    body=partial(models.Encoder, stack=STACK),
    generator=partial(models.Encoder, input_dim=W, stack=STACK),
    head=partial(models.MaskedLMHead, embedding_dim=W),
  ),
  partial(
    models.EncoderDecoder,
    d_model=W,
    embedding=EMBEDDING,
    encoder=partial(models.Encoder, stack=STACK),
    decoder=partial(
      models.Decoder,
      stack=partial(models.Stack, num_layers=2, blocks=[partial(BLOCK, cross=ATTENTION)]),
    ),
  ),
]


def shapes(build: Callable[..., Any]) -> Any:
  """Returns a part with shapes as leaves."""
  return jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))


def rows(blueprint: Blueprint) -> Iterator[tuple[str, ...]]:
  """Yields part and name, axes without stacked ones, kind, decay and rule of Muon of each parameter.

  The part is the innermost module that is no projection.
  """
  modules = {
    name_of(path): type(module).__name__
    for path, module in nnx.iter_modules(blueprint.shapes)
    if not isinstance(module, (layers.Linear, nnx.List))
  }
  for name, info in blueprint.infos.items():
    keys = name.split('.')
    depth = next(i for i in range(len(keys) - 1, -1, -1) if '.'.join(keys[:i]) in modules)
    dimensions, muon = matrix_dimensions(info), 'Adam' if info.rule is None else str(info.rule)
    if dimensions is not None:
      sides = (dimensions.reduction_axis, dimensions.output_axis)
      muon = ' to '.join(' '.join(str(info.all_axes[i]) for i in side) for side in sides)
    yield (
      f'{modules[".".join(keys[:depth])]}.{".".join(keys[depth:])}',
      ' '.join(map(str, info.axes)) or '-',
      info.kind,
      'decayed' if info.decayed else '-',
      muon,
    )


def part_rows() -> set[tuple[str, ...]]:
  """Returns the rows of all parts."""
  return {row for build in PARTS for row in rows(Blueprint(shapes(build)))}


def config_rows() -> dict[tuple[str, ...], str]:
  """Returns the rows of the models in configs/, and a config that has each."""
  files = sorted([*CONFIGS.glob('models/*.gin'), *CONFIGS.glob('runs/*.gin')])
  return {row: file.name for file in files for row in rows(blueprint_of(file))}


def table() -> str:
  """Returns the table of all parts."""
  header = 'parameter', 'axes', 'kind', 'weight decay', 'Muon'
  return text_table([header, *sorted(part_rows())], '<<<<<') + '\n'


if __name__ == '__main__':
  if '--write' in sys.argv[1:]:
    FILE.write_text(table())
  else:
    print(table(), end='')
