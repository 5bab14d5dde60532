"""Pyramids of stages: what their families share, and `SwinForImageClassification`."""

from collections.abc import Iterator, Mapping
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Bool, Field, Fields, Many, Only
from t2x.interop.family import (
  CLASSES,
  Family,
  Layers,
  Size,
  activation,
  num_classes,
  positive,
  rates,
  sizes,
)
from t2x.interop.layouts import LINEAR, PATCHES
from t2x.interop.rules import Rule, attention, dense, norm

__all__: list[str] = []

# Numbers of stages that are supported; the most frequent first.
NUM_STAGES = 4, 3, 2, 5, 6
# Stages and their merges, which all families number from 0.
STAGES = range(max(NUM_STAGES))
PYRAMID = """
Experiment.model = @VisionTransformer
VisionTransformer:
  d_model = {width}
  positions = @NoPositions
  body = @Encoder
  pool = @mean_tokens
  head = @Classifier
Encoder.stack = @Stages
Classifier.num_classes = {num_labels}
"""
# Fields that select the feature maps of a backbone.
BACKBONE = ('out_features', 'out_indices', 'stage_names')


def by_stage(text: str) -> Mapping[int, str]:
  """Returns gin text for each number of stages; in `text`, # is the number of a stage, from 1."""

  def stages(count: int) -> str:
    names = ', '.join(f'@s{i}/Stack' for i in range(1, count + 1))
    own = ''.join(text.replace('#', str(i)) for i in range(1, count + 1))
    return f'\nStages.stages = [{names}]\n{own}'

  return {count: stages(count) for count in NUM_STAGES}


def per_stage(**values: list[Any]) -> dict[str, Any]:
  """Returns NAME_1, NAME_2, ... for the values of each stage."""
  return {f'{name}_{i}': item for name, items in values.items() for i, item in enumerate(items, 1)}


def of_stages(values: Mapping[str, Any], name: str) -> list[Any]:
  """Returns the values NAME_1, NAME_2, ... of a model."""
  return [values[f'{name}_{i}'] for i in range(1, values['stages'] + 1)]


def check_lengths(fields: Fields, *names: str) -> int:
  """Returns the number of stages, for which each of the fields has a value.

  Raises:
    UserError: the fields differ in length, or there are fewer than 2 or more than 6 stages.
  """
  lengths = {name: len(fields[name]) for name in names}
  count = lengths[names[0]]
  if any(length != count for length in lengths.values()):
    shown = ', '.join(f'{length} {name}' for name, length in lengths.items())
    raise UserError(f'{fields.where}: {shown}: each stage needs one of each')
  if count not in NUM_STAGES:
    raise UserError(f'{fields.where}: {count} stages are not supported: 2 to {max(NUM_STAGES)} are')
  return count


SHARED: Mapping[str, Field] = {
  **CLASSES,
  **sizes(num_channels=3),
}


# Swin Transformer.

SWIN_LAYERS = """
VisionTransformer:
  embedding = @PatchEmbedding
  input_dropout = {hidden_dropout_prob}
PatchEmbedding:
  patch_size = {patch_size}
  channels = {num_channels}
  class_token = False
Encoder:
  input_norm = @LayerNorm
  final_norm = @LayerNorm
Stages.merge = @PatchMerging
Stack.stochastic_depth = {drop_path_rate}
Block:
  mixer = @Windowed
  feed_forward = @MLP
  wiring = @PreNorm
  encoding = @GridBias
PreNorm:
  norm = @LayerNorm
  dropout_rate = {hidden_dropout_prob}
LayerNorm.epsilon = {layer_norm_eps}
Windowed:
  mixer = @MultiHeadAttention
  size = {window_size}
GridBias:
  height = {window_size}
  width = {window_size}
MultiHeadAttention:
  use_bias = {qkv_bias}
  dropout_rate = {attention_probs_dropout_prob}
MLP.activation = {hidden_act}
"""
SWIN_STAGE = """
s#/Stack:
  num_layers = {depth_#}
  blocks = [@s#/Block, @s#/shifted/Block]
s#/shifted/Windowed.shift = {shift}
s#/GridBias.num_heads = {heads_#}
s#/MultiHeadAttention.num_heads = {heads_#}
s#/MLP.hidden_dim = {hidden_#}
"""


def derive_swin(fields: Fields) -> dict[str, Any]:
  """Returns the values of the stages."""
  count = check_lengths(fields, 'depths', 'num_heads')
  if odd := [depth for depth in fields['depths'] if depth % 2]:
    raise UserError(f'{fields.where}: a depth of {odd[0]} is not supported: depths must be even')
  merged = fields['patch_size'] * 2 ** (count - 1)
  if fields['image_size'] < merged * fields['window_size']:
    raise UserError(
      f'{fields.where}: image_size = {fields["image_size"]} is not supported: the map of the last '
      f'of {count} stages (depths) must be at least as large as a window, {merged} (from patch_size) x '
      f'{fields["window_size"]} (window_size) pixels'
    )
  width = fields['embed_dim']
  hidden = [int(fields['mlp_ratio'] * width * 2**i) for i in range(count)]
  own = per_stage(depth=fields['depths'], heads=fields['num_heads'], hidden=hidden)
  common = {'stages': count, 'width': width, 'shift': fields['window_size'] // 2}
  return num_classes(fields) | common | own


def restore_swin(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the fields of all stages, and the smallest image size with whole windows in each."""
  width = values['width'] >> (values['stages'] - 1)
  size = values['patch_size'] * 2 ** (values['stages'] - 1) * values['window_size']
  return values | {
    'depths': of_stages(values, 'depth'),
    'num_heads': of_stages(values, 'heads'),
    'mlp_ratio': values['hidden_1'] / width,
    'embed_dim': width,
    'image_size': size,
  }


def swin_rules() -> Iterator[Rule]:
  yield Rule(
    'swin.embeddings.patch_embeddings.projection.weight', ('embedding.projection.kernel',), PATCHES
  )
  yield Rule('swin.embeddings.patch_embeddings.projection.bias', ('embedding.projection.bias',))
  yield from norm('swin.embeddings.norm', 'body.input_norm')
  for i in STAGES:
    theirs = f'swin.encoder.layers.{i}.blocks.{{}}'
    ours = f'body.stack.stages.{i}.{{}}'
    yield from norm(f'{theirs}.layernorm_before', f'{ours}.mixer_wiring.norm')
    yield from norm(f'{theirs}.layernorm_after', f'{ours}.feed_forward_wiring.norm')
    names = (
      *(f'attention.self.{name}' for name in ('query', 'key', 'value')),
      'attention.output.dense',
    )
    yield from attention(theirs, f'{ours}.mixer.mixer', names)
    yield Rule(f'{theirs}.attention.self.relative_position_bias_table', (f'{ours}.encoding.table',))
    yield from dense(f'{theirs}.intermediate.dense', f'{ours}.feed_forward.up')
    yield from dense(f'{theirs}.output.dense', f'{ours}.feed_forward.down')
    merge, theirs = f'body.stack.merges.{i}', f'swin.encoder.layers.{i}.downsample'
    yield from norm(f'{theirs}.norm', f'{merge}.norm')
    yield Rule(f'{theirs}.reduction.weight', (f'{merge}.projection.kernel',), LINEAR)
  yield from norm('swin.layernorm', 'body.final_norm')
  yield from dense('classifier', 'head.out')


SWIN = Family(
  model_type='swin',
  architectures=('SwinForImageClassification',),
  template=PYRAMID + SWIN_LAYERS,
  choices={'stages': by_stage(SWIN_STAGE)},
  derive=derive_swin,
  restore=restore_swin,
  declared={
    **SHARED,
    **rates(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0, drop_path_rate=0.1),
    **sizes(embed_dim=96, image_size=224, patch_size=4, window_size=7),
    'depths': Many([2, 2, 6, 2], Layers(2)),
    'hidden_act': activation('gelu'),
    'layer_norm_eps': positive(1e-5, 1.0),
    'mlp_ratio': positive(4.0, 100.0),
    'num_heads': Many([3, 6, 12, 24], Size(1)),
    'qkv_bias': Bool(True),
    'use_absolute_embeddings': Only(False),
  },
  no_effect=('encoder_stride', 'hidden_size', 'num_layers', 'path_norm', *BACKBONE),
  rules=tuple(swin_rules()),
  ignored=(r'.*\.relative_position_index',),
)
