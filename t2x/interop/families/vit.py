"""ViT: `ViTForImageClassification`, `ViTModel` without its pooler."""

from typing import Any

from t2x.errors import UserError
from t2x.foreign import Bool, Field, Fields, Int
from t2x.interop.family import (
  CLASSES,
  Family,
  Layers,
  Part,
  Size,
  activation,
  activation_field,
  activation_name,
  fields_of_attention,
  num_classes,
  positive,
  rate,
  write,
)
from t2x.interop.layouts import CLASS_TOKEN, LINEAR_FROM_HEADS, PATCHES, ROW, VECTOR
from t2x.interop.rules import Rule, dense, norm

__all__ = ['VIT']

GIN = """
Experiment.model = @VisionTransformer
VisionTransformer:
  d_model = {hidden_size}
  embedding = @PatchEmbedding
  positions = @LearnedGrid
  body = @Encoder
  input_dropout = {hidden_dropout_prob}
  head = {head}
PatchEmbedding:
  patch_size = {patch}
  channels = {num_channels}
LearnedGrid:
  height = {rows}
  width = {columns}
Encoder:
  stack = @Stack
  final_norm = @LayerNorm
Stack:
  num_layers = {num_hidden_layers}
  blocks = [@Block]
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  wiring = @PreNorm
PreNorm:
  norm = @LayerNorm
  dropout_rate = {hidden_dropout_prob}
LayerNorm.epsilon = {layer_norm_eps}
MultiHeadAttention:
  num_heads = {num_attention_heads}
  use_bias = {qkv_bias}
  dropout_rate = {attention_probs_dropout_prob}
MLP:
  hidden_dim = {intermediate_size}
  activation = {activation}
"""

HEAD = """
Classifier.num_classes = {num_classes}
"""

BODY = 'body.stack.{}'
LAYER = 'vit.encoder.layer.{}'
PATCH_EMBEDDINGS = 'vit.embeddings.patch_embeddings.projection'
RULES = (
  Rule('vit.embeddings.cls_token', ('embedding.class_token',), CLASS_TOKEN),
  # Of masked images, which no part here reads.
  Rule('vit.embeddings.mask_token', ('embedding.mask_token',), CLASS_TOKEN),
  Rule('vit.embeddings.position_embeddings', ('positions.table',), ROW),
  Rule(f'{PATCH_EMBEDDINGS}.weight', ('embedding.projection.kernel',), PATCHES),
  Rule(f'{PATCH_EMBEDDINGS}.bias', ('embedding.projection.bias',), VECTOR),
  *norm(f'{LAYER}.layernorm_before', f'{BODY}.mixer_wiring.norm'),
  *dense(f'{LAYER}.attention.attention.query', f'{BODY}.mixer.q'),
  *dense(f'{LAYER}.attention.attention.key', f'{BODY}.mixer.k'),
  *dense(f'{LAYER}.attention.attention.value', f'{BODY}.mixer.v'),
  *dense(f'{LAYER}.attention.output.dense', f'{BODY}.mixer.out', layout=LINEAR_FROM_HEADS),
  *norm(f'{LAYER}.layernorm_after', f'{BODY}.feed_forward_wiring.norm'),
  *dense(f'{LAYER}.intermediate.dense', f'{BODY}.feed_forward.up'),
  *dense(f'{LAYER}.output.dense', f'{BODY}.feed_forward.down'),
  *norm('vit.layernorm', 'body.final_norm'),
  *dense('vit.pooler.dense', 'head.projection'),
  *dense('classifier', 'head.out'),
)


class Sides(Field):
  """Height and width, or one number where they are the same; as a pair."""

  @property
  def wanted(self):
    return 'a whole number from 1 to 65536, or a list of two'

  def accepts(self, value):
    sides = value if isinstance(value, list) else [value, value]
    return len(sides) == 2 and all(map(Int(1, 1, 1 << 16).accepts, sides))

  def convert(self, value):
    return tuple(value) if isinstance(value, list) else (value, value)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  height, width = fields['image_size']
  patch, other = fields['patch_size']
  if patch != other:
    raise UserError(
      f'{fields.where}: patch_size = {patch} x {other} is not supported, only squares'
    )
  if height % patch or width % patch:
    raise UserError(
      f'{fields.where}: image_size = {height} x {width} is not supported with patches of {patch}, '
      'only multiples of them'
    )
  has_head = fields['architecture'] != 'ViTModel'
  return write(
    GIN + HEAD if has_head else GIN,
    fields,
    head=Part('Classifier') if has_head else None,
    num_classes=num_classes(fields),
    patch=patch,
    rows=height // patch,
    columns=width // patch,
    activation=activation(fields, 'hidden_act'),
  )


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  (block,) = model.body.stack.blocks
  patch, grid = model.embedding.patch_size, model.positions
  classes = {} if model.head is None else {'num_labels': model.spec.num_classes}
  return 'ViTForImageClassification' if classes else 'ViTModel', {
    'attention_probs_dropout_prob': block.mixer.dropout_rate,
    'hidden_act': activation_name(block.feed_forward.activation),
    'hidden_dropout_prob': block.mixer_wiring.dropout_rate,
    'hidden_size': model.positions.table.shape[-1],
    'image_size': [patch * grid.height, patch * grid.width],
    'intermediate_size': block.feed_forward.up.kernel.shape[-1],
    'layer_norm_eps': model.body.final_norm.epsilon,
    'num_attention_heads': fields_of_attention(block.mixer)[0],
    'num_channels': model.embedding.projection.kernel.shape[2],
    'num_hidden_layers': model.body.stack.num_layers,
    'patch_size': patch,
    'qkv_bias': block.mixer.q.bias is not None,
    **classes,
  }


VIT = Family(
  model_type='vit',
  architectures=('ViTForImageClassification', 'ViTModel'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    **CLASSES,
    'attention_probs_dropout_prob': rate(0.0),
    'hidden_act': activation_field('gelu'),
    'hidden_dropout_prob': rate(0.0),
    'hidden_size': Size(768),
    'image_size': Sides(224),
    'intermediate_size': Size(3072),
    'layer_norm_eps': positive(1e-12, 1.0),
    'num_attention_heads': Size(12),
    'num_channels': Size(3),
    'num_hidden_layers': Layers(12),
    'patch_size': Sides(16),
    'qkv_bias': Bool(True),
  },
  prefix='vit.',
  bare='ViTModel',
)
