"""ViT: `ViTForImageClassification`, and `ViTModel` without its pooler; DeiT: `DeiTForImageClassificationWithTeacher`
and `DeiTForImageClassification`."""

from collections.abc import Iterator, Mapping
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Bool, Field, Fields, Int
from t2x.interop.family import (
  CLASSES,
  Family,
  Layers,
  activation,
  num_classes,
  positive,
  rates,
  sizes,
)
from t2x.interop.layouts import CLASS_TOKEN, PATCHES, ROW, VECTOR
from t2x.interop.rules import Rule, block, dense, norm, only_if
from t2x.interop.template import LAYERS, fill

IMAGES = """
Experiment.model = @VisionTransformer
VisionTransformer:
  d_model = {hidden_size}
  embedding = @PatchEmbedding
  positions = @LearnedGrid
  body = @Encoder
  input_dropout = {hidden_dropout_prob}
PatchEmbedding:
  patch_size = {patch_size}
  channels = {num_channels}
LearnedGrid:
  height = {rows}
  width = {columns}
Encoder:
  stack = @Stack
  final_norm = @LayerNorm
MultiHeadAttention.use_bias = {qkv_bias}
"""
HEADS = {
  'ViTForImageClassification': """
VisionTransformer.head = @Classifier
Classifier.num_classes = {num_labels}
""",
  'ViTModel': """
VisionTransformer.head = None
""",
}
# A second token, which has a position of its own, and a head for each.
DISTILLED = """
PatchEmbedding.num_registers = 1
LearnedGrid.num_extra = 2
"""
DEIT_HEADS = {
  'DeiTForImageClassificationWithTeacher': IMAGES.replace(
    'VisionTransformer', 'DistilledVisionTransformer'
  )
  + DISTILLED
  + """
DistilledVisionTransformer:
  head = @Classifier
  teacher_head = @Classifier
  mean = @LogitMean()
Classifier.num_classes = {num_labels}
""",
  'DeiTForImageClassification': IMAGES + DISTILLED + HEADS['ViTForImageClassification'],
}


class Sides(Field):
  """A (height, width) pair, given as a list or as one number for both."""

  @property
  def wanted(self):
    return 'a whole number from 1 to 65536, or a list of two'

  def accepts(self, value):
    sides = value if isinstance(value, list) else [value, value]
    return len(sides) == 2 and all(map(Int(1, 1, 1 << 16).accepts, sides))

  def convert(self, value):
    return tuple(value) if isinstance(value, list) else (value, value)


def derive(fields: Fields) -> dict[str, Any]:
  """Returns the patch grid and the number of classes."""
  height, width = fields['image_size']
  patch, patch_width = fields['patch_size']
  if patch != patch_width:
    raise UserError(f'{fields.where}: patch_size = {patch} x {patch_width} must be square')
  if height % patch or width % patch:
    raise UserError(
      f'{fields.where}: image_size = {height} x {width} must be a multiple of patch_size = {patch}'
    )
  grid = {'patch_size': patch, 'rows': height // patch, 'columns': width // patch}
  return grid | num_classes(fields)


def restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the image size."""
  patch = values['patch_size']
  return {**values, 'image_size': [patch * values['rows'], patch * values['columns']]}


FIELDS: Mapping[str, Field] = {
  **CLASSES,
  **rates(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0),
  **sizes(hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_channels=3),
  'hidden_act': activation('gelu'),
  'image_size': Sides(224),
  'layer_norm_eps': positive(1e-12, 1.0),
  'num_hidden_layers': Layers(12),
  'patch_size': Sides(16),
  'qkv_bias': Bool(True),
}
IMAGE_LAYERS = fill(
  LAYERS,
  attention_dropout='attention_probs_dropout_prob',
  hidden_dropout='hidden_dropout_prob',
)
# The pooler and the masked image decoder are not imported.
NO_EFFECT = 'encoder_stride', 'pooler_act', 'pooler_output_size'


def tower_rules(prefix: str) -> Iterator[Rule]:
  """The tensors of a tower without its head."""
  yield Rule(f'{prefix}.embeddings.cls_token', ('embedding.class_token',), CLASS_TOKEN)
  yield Rule(f'{prefix}.embeddings.distillation_token', ('embedding.registers',), ROW)
  yield Rule(f'{prefix}.embeddings.position_embeddings', ('positions.table',), ROW)
  patches = f'{prefix}.embeddings.patch_embeddings.projection'
  yield Rule(f'{patches}.weight', ('embedding.projection.kernel',), PATCHES)
  yield Rule(f'{patches}.bias', ('embedding.projection.bias',), VECTOR)
  yield from block(
    f'{prefix}.encoder.layer.{{}}',
    norms=('layernorm_before', 'layernorm_after'),
    mixer=(
      *(f'attention.attention.{name}' for name in ('query', 'key', 'value')),
      'attention.output.dense',
    ),
    feed_forward=('intermediate.dense', 'output.dense'),
  )
  yield from norm(f'{prefix}.layernorm', 'body.final_norm')


VIT = Family(
  model_type='vit',
  architectures=tuple(HEADS),
  template=IMAGES + IMAGE_LAYERS,
  choices={'architecture': HEADS},
  derive=derive,
  restore=restore,
  declared=FIELDS,
  no_effect=NO_EFFECT,
  rules=(
    *tower_rules('vit'),
    *dense('vit.pooler.dense', 'head.projection'),
    *dense('classifier', 'head.out'),
  ),
  prefix='vit.',
  kept=(r'vit\.embeddings\.mask_token',),
  bare='ViTModel',
)
DEIT = Family(
  model_type='deit',
  architectures=tuple(DEIT_HEADS),
  template=IMAGE_LAYERS,
  choices={'architecture': DEIT_HEADS},
  derive=derive,
  restore=restore,
  declared=FIELDS,
  no_effect=NO_EFFECT,
  rules=(
    *tower_rules('deit'),
    *only_if(dense('cls_classifier', 'head.out'), requires='teacher_head.out.bias'),
    *dense('distillation_classifier', 'teacher_head.out'),
    *only_if(dense('classifier', 'head.out'), excludes='teacher_head.out.bias'),
  ),
  kept=(r'deit\.embeddings\.mask_token',),
)
