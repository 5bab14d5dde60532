"""ViT: `ViTForImageClassification`, `ViTModel` without its pooler."""

from typing import Any

from t2x.errors import UserError
from t2x.interop.family import (
  Family,
  Fields,
  activation,
  activation_name,
  fields_of_attention,
  num_classes,
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
  activation = @{activation}
"""

CLASSES = """
Classifier.num_classes = {num_classes}
"""

BODY = 'body/stack/{}'
LAYER = 'vit.encoder.layer.{}'
PATCH_EMBEDDINGS = 'vit.embeddings.patch_embeddings.projection'
RULES = (
  Rule('vit.embeddings.cls_token', ('embedding/class_token',), CLASS_TOKEN),
  # Of masked images, which no part here reads.
  Rule('vit.embeddings.mask_token', ('embedding/mask_token',), CLASS_TOKEN),
  Rule('vit.embeddings.position_embeddings', ('positions/table',), ROW),
  Rule(f'{PATCH_EMBEDDINGS}.weight', ('embedding/projection/kernel',), PATCHES),
  Rule(f'{PATCH_EMBEDDINGS}.bias', ('embedding/projection/bias',), VECTOR),
  *norm(f'{LAYER}.layernorm_before', f'{BODY}/mixer_wiring/norm'),
  *dense(f'{LAYER}.attention.attention.query', f'{BODY}/mixer/q'),
  *dense(f'{LAYER}.attention.attention.key', f'{BODY}/mixer/k'),
  *dense(f'{LAYER}.attention.attention.value', f'{BODY}/mixer/v'),
  *dense(f'{LAYER}.attention.output.dense', f'{BODY}/mixer/out', layout=LINEAR_FROM_HEADS),
  *norm(f'{LAYER}.layernorm_after', f'{BODY}/feed_forward_wiring/norm'),
  *dense(f'{LAYER}.intermediate.dense', f'{BODY}/feed_forward/up'),
  *dense(f'{LAYER}.output.dense', f'{BODY}/feed_forward/down'),
  *norm('vit.layernorm', 'body/final_norm'),
  *dense('vit.pooler.dense', 'head/projection'),
  *dense('classifier', 'head/out'),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  height, width = _sides(fields, 'image_size')
  patch, other = _sides(fields, 'patch_size')
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
  return (GIN + (CLASSES if has_head else '')).format(
    **fields,
    head='@Classifier' if has_head else None,
    num_classes=num_classes(fields),
    patch=patch,
    rows=height // patch,
    columns=width // patch,
    activation=activation(fields, 'hidden_act'),
  )


def _sides(fields: Fields, name: str) -> tuple[int, int]:
  """Height and width of a field that is one number when they are the same."""
  sides = fields[name]
  height, width = sides if isinstance(sides, list) else (sides, sides)
  return height, width


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  (block,) = model.body.stack.blocks
  patch, grid = model.embedding.patch_size, model.positions
  classes = {'num_labels': model.num_classes} if model.num_classes else {}
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
  defaults={
    'attention_probs_dropout_prob': 0.0,
    'hidden_act': 'gelu',
    'hidden_dropout_prob': 0.0,
    'hidden_size': 768,
    'image_size': 224,
    'intermediate_size': 3072,
    'layer_norm_eps': 1e-12,
    'num_attention_heads': 12,
    'num_channels': 3,
    'num_hidden_layers': 12,
    'patch_size': 16,
    'qkv_bias': True,
  },
  prefix='vit.',
  bare='ViTModel',
)
