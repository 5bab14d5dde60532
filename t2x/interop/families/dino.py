"""DINOv2 (https://arxiv.org/abs/2304.07193) and DINOv3 (https://arxiv.org/abs/2508.10104): `Dinov2Model`,
`DINOv3ViTModel`, towers whose branches have learned factors. The model returns the vector of the class token.

transformers moves the coordinates of DINOv3 at random in training; t2x does not.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t2x.base.external_files import Bool, Fields, Int, Only
from t2x.interop.families.vit import FIELDS, IMAGES, Sides, derive, restore
from t2x.interop.family import Family, Layers, Size, activation, positive, rates, sizes
from t2x.interop.layouts import CLASS_TOKEN, PATCHES, ROW, VECTOR
from t2x.interop.rules import Rule, block, dense, norm, only_if
from t2x.interop.template import LAYERS, GinReference, fill

SCALED = LAYERS.replace('PreNorm', 'LayerScale')
# use_swiglu_ffn or use_gated_mlp -> the layers.
PARTS: Mapping[bool, str] = {
  False: SCALED,
  True: SCALED.replace('MLP', 'GatedMLP') + 'GatedMLP.use_bias = {mlp_bias}\n',
}
HEADLESS = """
VisionTransformer.head = None
"""
# Fields of backbones, which are not imported, and initial values; in pretraining patches become mask tokens.
NO_EFFECT = (
  *('apply_layernorm', 'out_features', 'out_indices', 'reshape_hidden_states', 'stage_names'),
  *('layerscale_value', 'return_class_token', 'use_mask_token'),
)
# Stochastic depth of transformers has one rate for all layers.
DEPTH = {'drop_path_rate': Only(0.0)}


def _rules(layer: str, patches: str, last: str, mixer: Sequence[str]) -> Iterator[Rule]:
  """The tensors of a tower without its feed-forward layers.

  Args:
    layer: prefix of a layer.
    patches: name of the projection of patches.
    last: name of the norm after the last layer.
    mixer: names of the projections of the attention.
  """
  yield Rule('embeddings.cls_token', ('embedding.class_token',), CLASS_TOKEN)
  yield Rule('embeddings.register_tokens', ('embedding.registers',), ROW)
  yield Rule('embeddings.position_embeddings', ('positions.table',), ROW)
  yield Rule(f'{patches}.weight', ('embedding.projection.kernel',), PATCHES)
  yield Rule(f'{patches}.bias', ('embedding.projection.bias',), VECTOR)
  yield from block(layer, norms=('norm1', 'norm2'), mixer=mixer, feed_forward=())
  for number, branch in enumerate(('mixer', 'feed_forward'), 1):
    parameter = f'body.stack.{{}}.{branch}_wiring.gamma'
    yield Rule(f'{layer}.layer_scale{number}.lambda1', (parameter,))
  yield from norm(last, 'body.final_norm')


def _derive_v2(fields: Fields) -> dict[str, Any]:
  """Returns the patch grid and the width of the feed-forward layers."""
  width = fields['mlp_ratio'] * fields['hidden_size']
  gated = fields['use_swiglu_ffn']
  return derive(fields) | {
    'mlp_bias': True,
    'intermediate_size': (int(width * 2 / 3) + 7) // 8 * 8 if gated else width,
    'function': GinReference('silu') if gated else fields['hidden_act'],
  }


def _restore_v2(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the image size and the factor of the width."""
  width, hidden = values['hidden_size'], values['intermediate_size']
  gated = values['use_swiglu_ffn']
  ratio = round(hidden * (1.5 if gated else 1) / width)
  return (
    restore(values) | {'mlp_ratio': ratio} | ({} if gated else {'hidden_act': values['function']})
  )


MLP = 'body.stack.{}.feed_forward'
GATE = f'{MLP}.gate.kernel'
DINOV2 = Family(
  model_type='dinov2',
  architectures=('Dinov2Model',),
  template=IMAGES + HEADLESS,
  choices={
    'use_swiglu_ffn': {
      gated: fill(
        text,
        attention_dropout='attention_probs_dropout_prob',
        hidden_act='function',
        hidden_dropout='hidden_dropout_prob',
      )
      for gated, text in PARTS.items()
    }
  },
  derive=_derive_v2,
  restore=_restore_v2,
  declared={
    **{name: field for name, field in FIELDS.items() if name != 'intermediate_size'},
    **DEPTH,
    'layer_norm_eps': positive(1e-6, 1.0),
    'mlp_ratio': Size(4),
    'patch_size': Sides(14),
    'use_swiglu_ffn': Bool(False),
  },
  no_effect=NO_EFFECT,
  rules=(
    *_rules(
      'encoder.layer.{}',
      'embeddings.patch_embeddings.projection',
      'layernorm',
      (
        *(f'attention.attention.{name}' for name in ('query', 'key', 'value')),
        'attention.output.dense',
      ),
    ),
    *only_if(dense('encoder.layer.{}.mlp.fc1', f'{MLP}.up'), excludes=GATE),
    *only_if(dense('encoder.layer.{}.mlp.fc2', f'{MLP}.down'), excludes=GATE),
    *dense('encoder.layer.{}.mlp.weights_in', f'{MLP}.gate', f'{MLP}.up'),
    *only_if(dense('encoder.layer.{}.mlp.weights_out', f'{MLP}.down'), requires=GATE),
  ),
  kept=(r'embeddings\.mask_token',),
)

# Positions are rotations by row and column, for images of any size.
ROTATED = """
Experiment.model = @VisionTransformer
VisionTransformer:
  d_model = {hidden_size}
  embedding = @PatchEmbedding
  positions = @NoPositions
  body = @Encoder
  head = None
PatchEmbedding:
  patch_size = {patch_size}
  channels = {num_channels}
  num_registers = {num_register_tokens}
Encoder:
  stack = @Stack
  encoding = @GridRoPE
  final_norm = @LayerNorm
GridRoPE.base = {rope_theta}
MultiHeadAttention:
  use_bias = {use_bias}
  out_bias = {proj_bias}
"""
BIASES = {'q': 'query_bias', 'k': 'key_bias', 'v': 'value_bias'}


def _derive_v3(fields: Fields) -> dict[str, Any]:
  """Returns the projections with biases."""
  return {'use_bias': [name for name, field in BIASES.items() if fields[field]]}


def _restore_v3(values: dict[str, Any]) -> dict[str, Any]:
  """Adds which projections have biases."""
  own = values['use_bias']
  names = own if isinstance(own, list) else [*BIASES] * own
  return values | {field: name in names for name, field in BIASES.items()}


DINOV3 = Family(
  model_type='dinov3_vit',
  architectures=('DINOv3ViTModel',),
  template=ROTATED,
  choices={
    'use_gated_mlp': {
      gated: fill(text, hidden_dropout=0.0) + ('' if gated else 'MLP.use_bias = {mlp_bias}\n')
      for gated, text in PARTS.items()
    }
  },
  derive=_derive_v3,
  restore=_restore_v3,
  declared={
    **DEPTH,
    **rates(attention_dropout=0.0),
    **sizes(hidden_size=384, intermediate_size=1536, num_attention_heads=6, num_channels=3),
    **sizes(patch_size=16),
    **{name: Bool(name != 'key_bias') for name in ('mlp_bias', 'proj_bias', *BIASES.values())},
    'hidden_act': activation('gelu'),
    'layer_norm_eps': positive(1e-5, 1.0),
    'num_hidden_layers': Layers(12),
    'num_register_tokens': Int(0),
    'rope_theta': positive(100.0),
    'use_gated_mlp': Bool(False),
  },
  # Random coordinates in training.
  no_effect=(
    *(*NO_EFFECT, 'image_size'),
    *('pos_embed_jitter', 'pos_embed_rescale', 'pos_embed_shift'),
  ),
  rules=(
    *_rules(
      'layer.{}',
      'embeddings.patch_embeddings',
      'norm',
      tuple(f'attention.{name}_proj' for name in 'qkvo'),
    ),
    *(
      rule
      for name in ('gate', 'up', 'down')
      for rule in dense(f'layer.{{}}.mlp.{name}_proj', f'{MLP}.{name}')
    ),
  ),
  renamed={r'^model\.layer\.': 'layer.'},
  kept=(r'embeddings\.mask_token',),
)
