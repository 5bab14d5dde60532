"""ViT: `ViTForImageClassification`, and `ViTModel` without its pooler."""

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
from t2x.interop.rules import Rule, block, dense, norm
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
PATCH_EMBEDDINGS = 'vit.embeddings.patch_embeddings.projection'


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


VIT = Family(
  model_type='vit',
  architectures=tuple(HEADS),
  template=IMAGES
  + fill(
    LAYERS,
    attention_dropout='attention_probs_dropout_prob',
    hidden_dropout='hidden_dropout_prob',
  ),
  choices={'architecture': HEADS},
  derive=derive,
  restore=restore,
  declared={
    **CLASSES,
    **rates(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0),
    **sizes(hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_channels=3),
    'hidden_act': activation('gelu'),
    'image_size': Sides(224),
    'layer_norm_eps': positive(1e-12, 1.0),
    'num_hidden_layers': Layers(12),
    'patch_size': Sides(16),
    'qkv_bias': Bool(True),
  },
  # The pooler and the masked image decoder are not imported.
  no_effect=('encoder_stride', 'pooler_act', 'pooler_output_size'),
  rules=(
    Rule('vit.embeddings.cls_token', ('embedding.class_token',), CLASS_TOKEN),
    # Only masked image models use it.
    Rule('vit.embeddings.mask_token', ('embedding.mask_token',), CLASS_TOKEN),
    Rule('vit.embeddings.position_embeddings', ('positions.table',), ROW),
    Rule(f'{PATCH_EMBEDDINGS}.weight', ('embedding.projection.kernel',), PATCHES),
    Rule(f'{PATCH_EMBEDDINGS}.bias', ('embedding.projection.bias',), VECTOR),
    *block(
      'vit.encoder.layer.{}',
      norms=('layernorm_before', 'layernorm_after'),
      mixer=(
        *(f'attention.attention.{name}' for name in ('query', 'key', 'value')),
        'attention.output.dense',
      ),
      feed_forward=('intermediate.dense', 'output.dense'),
    ),
    *norm('vit.layernorm', 'body.final_norm'),
    *dense('vit.pooler.dense', 'head.projection'),
    *dense('classifier', 'head.out'),
  ),
  prefix='vit.',
  bare='ViTModel',
)
