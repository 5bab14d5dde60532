"""Two towers of images and texts: CLIP (`CLIPModel`) and SigLIP (`SiglipModel`).

Texts of CLIP are padded after their end token, from which their vector is read: pass `tokens` with segments. Those of
SigLIP are padded to the full length, and read with their padding.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Field, Fields, Only
from t2x.interop.family import Family, Layers, Size, activation, positive, rates, sizes
from t2x.interop.layouts import CLASS_TOKEN, LINEAR, PATCHES, ROW, VECTOR
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import LAYERS

IMAGE, TEXT = 'vision_config', 'text_config'
SIDES = {'image': IMAGE, 'text': TEXT}


def _layers(scope: str) -> str:
  """The layers of a tower, in its scope, with the values of its object in config.json."""
  lines = LAYERS.strip().replace('  dropout_rate = {hidden_dropout}\n', '').splitlines()
  scoped = (line if line.startswith(' ') else f'{scope}/{line}' for line in lines)
  return '\n'.join(scoped).replace(' = {', f' = {{{SIDES[scope]}.') + '\n'


TOWERS = (
  """
Experiment.model = @TwoTower
TwoTower:
  a = @image/Tower
  b = @text/Tower
image/Tower:
  d_model = {vision_config.hidden_size}
  embedding = @PatchEmbedding
  body = @Encoder
text/Tower:
  d_model = {text_config.hidden_size}
  embedding = @TokenEmbedding
  pool = @last_token
PatchEmbedding:
  patch_size = {vision_config.patch_size}
  channels = {vision_config.num_channels}
LearnedGrid:
  height = {side}
  width = {side}
TokenEmbedding.vocab_size = {text_config.vocab_size}
LearnedPositions.max_length = {text_config.max_position_embeddings}
image/Encoder:
  stack = @Stack
  encoding = @LearnedGrid
  final_norm = @LayerNorm
"""
  + _layers('image')
  + _layers('text')
)
CLIP_TEMPLATE = (
  TOWERS
  + """
TwoTower.dim = {projection_dim}
TwoTower.max_factor = 100.0
image/Tower.pool = @first_token
PatchEmbedding.use_bias = False
image/Encoder.input_norm = @LayerNorm
text/Tower.body = @Decoder
text/Decoder:
  stack = @Stack
  encoding = @LearnedPositions
  final_norm = @LayerNorm
"""
)
SIGLIP_TEMPLATE = (
  TOWERS
  + """
TwoTower:
  dim = {text_config.projection_size}
  max_factor = None
  bias = -10.0
  a_projection = None
  b_projection = @VectorProjection
VectorProjection.use_bias = True
image/Tower.pool = @AttentionPool
AttentionPool:
  attention = @MultiHeadAttention
  norm = @LayerNorm
  feed_forward = @MLP
PatchEmbedding.class_token = False
LearnedGrid.num_extra = 0
text/Tower.body = @Encoder
text/Encoder:
  stack = @Stack
  encoding = @LearnedPositions
  final_norm = @LayerNorm
"""
)


def _fields(
  scope: str, width: int, layers: int, heads: int, function: str, epsilon: float, **more: Field
) -> Mapping[str, Field]:
  """The fields of one tower by their full names."""
  fields = {
    **rates(attention_dropout=0.0),
    **sizes(hidden_size=width, intermediate_size=4 * width, num_attention_heads=heads),
    'dropout': Only(0.0),
    'hidden_act': activation(function),
    'layer_norm_eps': positive(epsilon, 1.0),
    'num_hidden_layers': Layers(layers),
    **more,
  }
  return {f'{SIDES[scope]}.{name}': field for name, field in fields.items()}


def _pixels(patch_size: int) -> Mapping[str, Field]:
  return sizes(num_channels=3, image_size=224, patch_size=patch_size)


def _derive(fields: Fields) -> dict[str, Any]:
  """Returns the side of the patch grid, and SigLIP's width of vectors."""
  pixels, patch = fields[f'{IMAGE}.image_size'], fields[f'{IMAGE}.patch_size']
  if pixels % patch:
    raise UserError(
      f'{fields.where}: {IMAGE}.image_size = {pixels} must be a multiple of patch_size = {patch}'
    )
  name = f'{TEXT}.projection_size'
  width = {name: fields[name] or fields[f'{TEXT}.hidden_size']} if name in fields else {}
  return width | {'side': pixels // patch}


def _restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the image size."""
  return {**values, f'{IMAGE}.image_size': values['side'] * values[f'{IMAGE}.patch_size']}


def _rules() -> Iterator[Rule]:
  """Yields the rules of both towers; rules of missing tensors are skipped."""
  patches = 'vision_model.embeddings.patch_embedding'
  yield Rule('vision_model.embeddings.class_embedding', ('a.embedding.class_token',))
  yield Rule(f'{patches}.weight', ('a.embedding.projection.kernel',), PATCHES)
  yield Rule(f'{patches}.bias', ('a.embedding.projection.bias',), VECTOR)
  yield Rule('text_model.embeddings.token_embedding.weight', ('b.embedding.table',))
  for side, module in (('a', 'vision_model'), ('b', 'text_model')):
    table = f'{module}.embeddings.position_embedding.weight'
    yield Rule(table, (f'{side}.body.encoding.table',))
    yield from block(
      f'{module}.encoder.layers.{{}}',
      f'{side}.body.stack.{{}}',
      norms=('layer_norm1', 'layer_norm2'),
      mixer=tuple(f'self_attn.{name}_proj' for name in ('q', 'k', 'v', 'out')),
      feed_forward=('mlp.fc1', 'mlp.fc2'),
    )
  # The name is misspelt in the files.
  yield from norm('vision_model.pre_layrnorm', 'a.body.input_norm')
  yield from norm('vision_model.post_layernorm', 'a.body.final_norm')
  yield from norm('text_model.final_layer_norm', 'b.body.final_norm')


def _attention_pool(head: str, module: str) -> Iterator[Rule]:
  """The tensors of attention of a learned query."""
  yield Rule(f'{head}.probe', (f'{module}.query',), CLASS_TOKEN)
  attention = f'{module}.attention'
  inputs = tuple(f'{attention}.{part}' for part in 'qkv')
  kernels, biases = (tuple(f'{i}.{n}' for i in inputs) for n in ('kernel', 'bias'))
  yield Rule(f'{head}.attention.in_proj_weight', kernels, LINEAR)
  yield Rule(f'{head}.attention.in_proj_bias', biases, VECTOR)
  yield from dense(f'{head}.attention.out_proj', f'{attention}.out', layout=LINEAR.from_heads)
  yield from norm(f'{head}.layernorm', f'{module}.norm')
  yield from dense(f'{head}.mlp.fc1', f'{module}.feed_forward.up')
  yield from dense(f'{head}.mlp.fc2', f'{module}.feed_forward.down')


CLIP = Family(
  model_type='clip',
  architectures=('CLIPModel',),
  nested=(TEXT, IMAGE),
  template=CLIP_TEMPLATE,
  derive=_derive,
  restore=_restore,
  declared={
    'projection_dim': Size(512),
    **_fields(
      'text',
      512,
      12,
      8,
      'quick_gelu',
      1e-5,
      **sizes(vocab_size=49408, max_position_embeddings=77),
    ),
    **_fields('image', 768, 12, 12, 'quick_gelu', 1e-5, **_pixels(32)),
    'text_config_dict': Only(None),
    'vision_config_dict': Only(None),
  },
  # Initial values, and those of models of one tower.
  no_effect=('logit_scale_init_value', 'projection_dim', 'tie_word_embeddings'),
  ignored=(r'(text|vision)_model\.embeddings\.position_ids',),
  rules=(
    *_rules(),
    Rule('visual_projection.weight', ('a_projection.kernel',), LINEAR),
    Rule('text_projection.weight', ('b_projection.kernel',), LINEAR),
    Rule('logit_scale', ('log_factor',)),
  ),
)
SIGLIP = Family(
  model_type='siglip',
  architectures=('SiglipModel',),
  nested=(TEXT, IMAGE),
  template=SIGLIP_TEMPLATE,
  derive=_derive,
  restore=_restore,
  declared={
    **_fields(
      'text',
      768,
      12,
      12,
      'gelu_pytorch_tanh',
      1e-6,
      **sizes(vocab_size=32000, max_position_embeddings=64, projection_size=None),
    ),
    **_fields('image', 768, 12, 12, 'gelu_pytorch_tanh', 1e-6, **_pixels(16)),
    f'{IMAGE}.vision_use_head': Only(True),
  },
  no_effect=('tie_word_embeddings',),
  ignored=(r'(text|vision)_model\.embeddings\.position_ids',),
  rules=(
    *_rules(),
    *_attention_pool('vision_model.head', 'a.pool'),
    *dense('text_model.head', 'b_projection'),
    Rule('logit_scale', ('log_factor',), ROW),
    Rule('logit_bias', ('bias',), ROW),
  ),
)

FAMILIES = (CLIP, SIGLIP)
TASK_FILES = ()
