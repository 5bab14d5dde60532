"""Convolutional networks: `ResNetForImageClassification` and `ConvNextForImageClassification`."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Choice, Fields, Many, Only
from t2x.interop.families.pyramids import (
  BACKBONE,
  PYRAMID,
  SHARED,
  STAGES,
  by_stage,
  check_lengths,
  of_stages,
  per_stage,
)
from t2x.interop.family import Family, Layers, Size, activation, num_classes, positive, rates, sizes
from t2x.interop.layouts import PATCHES
from t2x.interop.rules import Rule, dense, norm

__all__: list[str] = []

# XLA on a CPU computes gradients of convolutions inside loops several times slower.
LAYERS = """
VisionTransformer.embedding = @GridStem
GridStem.channels = {num_channels}
Encoder.final_norm = None
Stack:
  blocks = [@SublayerBlock]
  unroll = 32
"""
STAGE = """
s#/Stack.num_layers = {depth_#}
"""


def check_doubling(fields: Fields) -> None:
  """Raises UserError unless each stage is twice as wide as the one before."""
  widths = fields['hidden_sizes']
  if any(2 * a != b for a, b in itertools.pairwise(widths)):
    raise UserError(
      f'{fields.where}: hidden_sizes = {widths} is not supported: each stage must be twice as wide as the one before'
    )


def widths(values: dict[str, Any]) -> list[int]:
  """Returns the widths of the stages of a model, from that of its last."""
  return [values['width'] >> i for i in reversed(range(values['stages']))]


def convolution(prefix: str, module: str, first: int = 0) -> tuple[Rule, Rule]:
  """Kernel and bias of a convolution."""
  return (
    Rule(f'{prefix}.weight', (f'{module}.kernel',), PATCHES, first=first),
    Rule(f'{prefix}.bias', (f'{module}.bias',), first=first),
  )


# ResNet.

RESNET_LAYERS = """
GridConvolution:
  norm = @FrozenBatchNorm
  activation = {hidden_act}
  use_bias = False
stem/GridConvolution:
  width = {embedding_size}
  kernel_size = 7
  stride = 2
SublayerBlock:
  sublayers = {'mixer': @GridBranch}
  wiring = @ActivatedResidual
ActivatedResidual.activation = {hidden_act}
Stages.merge = @ResidualMerge
ResidualMerge:
  shortcut = @shortcut/GridConvolution
  activation = {hidden_act}
shortcut/GridConvolution:
  factor = 2
  kernel_size = 1
  stride = 2
  activation = None
"""
KINDS = {
  'bottleneck': """
GridStem.parts = {'convolution': @stem/GridConvolution, 'pool': @MaxPool, 'block': @widening/ResidualMerge}
widening/ResidualMerge:
  parts = {'first': @same/GridConvolution, 'second': @GridConvolution, 'third': @widen/GridConvolution}
  shortcut = @beside/GridConvolution
beside/GridConvolution:
  factor = 4
  kernel_size = 1
  activation = None
same/GridConvolution.kernel_size = 1
GridBranch.parts = {'first': @narrow/GridConvolution, 'second': @GridConvolution, 'third': @widen/GridConvolution}
ResidualMerge.parts = {
  'first': @half/GridConvolution, 'second': @strided/GridConvolution, 'third': @widen/GridConvolution
}
narrow/GridConvolution:
  factor = 0.25
  kernel_size = 1
half/GridConvolution:
  factor = 0.5
  kernel_size = 1
strided/GridConvolution.stride = 2
widen/GridConvolution:
  factor = 4
  kernel_size = 1
  activation = None
""",
  'basic': """
GridStem.parts = {'convolution': @stem/GridConvolution, 'pool': @MaxPool}
GridBranch.parts = {'first': @GridConvolution, 'second': @last/GridConvolution}
ResidualMerge.parts = {'first': @halve/GridConvolution, 'second': @last/GridConvolution}
halve/GridConvolution:
  factor = 2
  stride = 2
last/GridConvolution.activation = None
""",
}
# Width of the first stage relative to that of the stem.
WIDENING = {'bottleneck': 4, 'basic': 1}


def merged(kind: str, stage: int) -> int:
  """Returns the number of layers of a stage, from 0, that are a `ResidualMerge`."""
  return 1 if stage or kind == 'bottleneck' else 0


def derive_resnet(fields: Fields) -> dict[str, Any]:
  """Returns the values of the stages."""
  count, kind = check_lengths(fields, 'depths', 'hidden_sizes'), fields['layer_type']
  check_doubling(fields)
  width = fields['embedding_size'] * WIDENING[kind]
  if fields['hidden_sizes'][0] != width:
    raise UserError(
      f'{fields.where}: hidden_sizes = {fields["hidden_sizes"]} is not supported: with layer_type = {kind!r} and '
      f'embedding_size = {fields["embedding_size"]} the first must be {width}'
    )
  depth = [depth - merged(kind, i) for i, depth in enumerate(fields['depths'])]
  if min(depth) < 1:
    raise UserError(
      f'{fields.where}: depths = {fields["depths"]} is not supported: a stage needs a layer after '
      'the one that begins it'
    )
  return num_classes(fields) | {'stages': count, 'width': width} | per_stage(depth=depth)


def restore_resnet(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the fields of all stages."""
  kind = values['layer_type']
  depths = [depth + merged(kind, i) for i, depth in enumerate(of_stages(values, 'depth'))]
  return values | {'depths': depths, 'hidden_sizes': widths(values)}


def resnet_rules() -> Iterator[Rule]:
  def normalised(prefix: str, module: str, first: int = 0) -> Iterator[Rule]:
    yield convolution(f'{prefix}.convolution', f'{module}.convolution', first)[0]
    pairs = (
      ('weight', 'scale'),
      ('bias', 'bias'),
      ('running_mean', 'mean'),
      ('running_var', 'variance'),
    )
    for theirs, ours in pairs:
      yield Rule(f'{prefix}.normalization.{theirs}', (f'{module}.norm.{ours}',), first=first)

  def branch(prefix: str, module: str, first: int = 0) -> Iterator[Rule]:
    for i, part in enumerate(('first', 'second', 'third')):
      yield from normalised(f'{prefix}.layer.{i}', f'{module}.{part}', first)

  yield from normalised('resnet.embedder.embedder', 'embedding.convolution')
  for i in STAGES:
    theirs = f'resnet.encoder.stages.{i}.layers'
    merge = f'body.stack.merges.{i - 1}' if i else 'embedding.block'
    yield from branch(f'{theirs}.0', merge)
    yield from normalised(f'{theirs}.0.shortcut', f'{merge}.shortcut')
    ours = f'body.stack.stages.{i}.{{}}.mixer'
    if i:
      yield from branch(f'{theirs}.{{}}', ours, first=1)
      continue
    # The first stage of bottlenecks begins in the stem.
    begins = 'embedding.block.first.convolution.kernel'
    for rule in branch(f'{theirs}.{{}}', ours, first=1):
      yield dataclasses.replace(rule, requires=begins)
    for rule in branch(f'{theirs}.{{}}', ours):
      yield dataclasses.replace(rule, excludes=begins)
  yield from dense('classifier.1', 'head.out')


RESNET = Family(
  model_type='resnet',
  architectures=('ResNetForImageClassification',),
  template=PYRAMID + LAYERS + RESNET_LAYERS,
  choices={'stages': by_stage(STAGE), 'layer_type': KINDS},
  derive=derive_resnet,
  restore=restore_resnet,
  declared={
    **SHARED,
    **sizes(embedding_size=64),
    'depths': Many([3, 4, 6, 3], Layers(1)),
    'downsample_in_bottleneck': Only(False),
    'downsample_in_first_stage': Only(False),
    'hidden_act': activation('relu'),
    'hidden_sizes': Many([256, 512, 1024, 2048], Size(1)),
    'layer_type': Choice('bottleneck', tuple(KINDS)),
  },
  no_effect=BACKBONE,
  rules=tuple(resnet_rules()),
  ignored=(r'.*\.num_batches_tracked',),
)


# ConvNeXt.

CONVNEXT_LAYERS = """
GridStem.parts = {'patches': @stem/GridConvolution}
stem/GridConvolution:
  width = {stem_width}
  kernel_size = {patch_size}
  stride = {patch_size}
  norm = @LayerNorm
Stages.merge = @halve/GridConvolution
halve/GridConvolution:
  factor = 2
  kernel_size = 2
  stride = 2
  input_norm = @LayerNorm
Stack.stochastic_depth = {drop_path_rate}
SublayerBlock:
  sublayers = {'mixer': @Sequential}
  wiring = @LayerScale
LayerScale.norm = None
Sequential.parts = {'convolution': @GridBranch, 'mlp': @MLP}
GridBranch.parts = {'depthwise': @depthwise/GridConvolution}
depthwise/GridConvolution:
  kernel_size = 7
  group_size = 1
  norm = @LayerNorm
MLP.activation = {hidden_act}
LayerNorm.epsilon = 1e-6
Classifier.norm = @last/LayerNorm
last/LayerNorm.epsilon = {layer_norm_eps}
"""
CONVNEXT_STAGE = STAGE + 's#/MLP.hidden_dim = {hidden_#}\n'


def derive_convnext(fields: Fields) -> dict[str, Any]:
  """Returns the values of the stages."""
  count = check_lengths(fields, 'depths', 'hidden_sizes')
  if fields['num_stages'] != count:
    raise UserError(
      f'{fields.where}: num_stages = {fields["num_stages"]} contradicts {count} depths and hidden_sizes'
    )
  check_doubling(fields)
  own = per_stage(depth=fields['depths'], hidden=[4 * size for size in fields['hidden_sizes']])
  width = fields['hidden_sizes'][0]
  return num_classes(fields) | {'stages': count, 'width': width, 'stem_width': width} | own


def restore_convnext(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the fields of all stages."""
  own = {'depths': of_stages(values, 'depth'), 'hidden_sizes': widths(values)}
  return values | own | {'num_stages': values['stages']}


def convnext_rules() -> Iterator[Rule]:
  yield from convolution('convnext.embeddings.patch_embeddings', 'embedding.patches.convolution')
  yield from norm('convnext.embeddings.layernorm', 'embedding.patches.norm')
  for i in STAGES:
    theirs = f'convnext.encoder.stages.{i}'
    merge = f'body.stack.merges.{i - 1}'
    if i:
      yield from norm(f'{theirs}.downsampling_layer.0', f'{merge}.input_norm')
      yield from convolution(f'{theirs}.downsampling_layer.1', f'{merge}.convolution')
    theirs, ours = f'{theirs}.layers.{{}}', f'body.stack.stages.{i}.{{}}'
    depthwise = f'{ours}.mixer.convolution.depthwise'
    yield from convolution(f'{theirs}.dwconv', f'{depthwise}.convolution')
    yield from norm(f'{theirs}.layernorm', f'{depthwise}.norm')
    yield from dense(f'{theirs}.pwconv1', f'{ours}.mixer.mlp.up')
    yield from dense(f'{theirs}.pwconv2', f'{ours}.mixer.mlp.down')
    yield Rule(f'{theirs}.layer_scale_parameter', (f'{ours}.mixer_wiring.gamma',))
  yield from norm('convnext.layernorm', 'head.norm')
  yield from dense('classifier', 'head.out')


CONVNEXT = Family(
  model_type='convnext',
  architectures=('ConvNextForImageClassification',),
  template=PYRAMID + LAYERS + CONVNEXT_LAYERS,
  choices={'stages': by_stage(CONVNEXT_STAGE)},
  derive=derive_convnext,
  restore=restore_convnext,
  declared={
    **SHARED,
    **rates(drop_path_rate=0.0),
    **sizes(num_stages=4, patch_size=4),
    'depths': Many([3, 3, 9, 3], Layers(1)),
    'hidden_act': activation('gelu'),
    'hidden_sizes': Many([96, 192, 384, 768], Size(1)),
    'layer_norm_eps': positive(1e-12, 1.0),
    # Without it the layers have no scales.
    'layer_scale_init_value': positive(1e-6),
  },
  no_effect=('image_size', *BACKBONE),
  rules=tuple(convnext_rules()),
)
