"""Dense decoder-only language models with the names of Llama: one table of their fields, one row per family.

Llama, Mistral, Qwen2, Qwen3, Gemma 2 and 3, OLMo 2, Phi, Phi-3, SmolLM (a Llama) and SmolLM3.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t2x.base.external_files import Bool, Choice, Field, Fields, Int, Many, Only
from t2x.interop.family import ACTIVATIONS, Family, Layers, activation, positive, rates, sizes, tied
from t2x.interop.rope import SCALINGS, Rope
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import (
  ATTENTION_BIAS,
  DECODER,
  LAYERS,
  PARALLEL_LAYERS,
  GinReference,
  fill,
)
from t2x.layers import Window

# Types and ranges of the fields; a family has the defaults.
TYPES: Mapping[str, Field] = {
  **rates(attention_dropout=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
  **sizes(head_dim=None, hidden_size=None, intermediate_size=None, num_attention_heads=None),
  **sizes(num_key_value_heads=None, vocab_size=None),
  **dict.fromkeys(('attention_bias', 'mlp_bias', 'use_sliding_window'), Bool(False)),
  'hidden_act': activation('silu'),
  # Gemma's name of the activation comes first in exports.
  'hidden_activation': activation('', {'gelu_pytorch_tanh': 'gelu', **ACTIVATIONS}),
  **dict.fromkeys(('rms_norm_eps', 'layer_norm_eps'), positive(1e-6, 1.0)),
  **dict.fromkeys(('attn_logit_softcapping', 'final_logit_softcapping'), positive(None)),
  'max_window_layers': Int(0),
  'num_hidden_layers': Layers(1),
  'query_pre_attn_scalar': Int(1, 1),
  'sliding_window': Int(None, 1),
  'tie_word_embeddings': tied(False),
}
# Fields that may be null.
NULLABLE = ('attn_logit_softcapping', 'final_logit_softcapping', 'sliding_window')
# Placeholders of the templates -> fields, and the values of families without the field.
NAMES: Mapping[str, Any] = {
  'embedding_dropout': 'embd_pdrop',
  'hidden_dropout': 'resid_pdrop',
  'layer_norm_eps': 'rms_norm_eps',
}
# Of families with `LayerNorm`.
LAYER_NORM_NAMES = {**NAMES, 'layer_norm_eps': 'layer_norm_eps'}
ABSENT: Mapping[str, Any] = {
  'attention_bias': False,
  'embd_pdrop': 0.0,
  'mlp_bias': False,
  'resid_pdrop': 0.0,
}
HEADS = """
MultiHeadAttention:
  num_kv_heads = {num_key_value_heads}
  head_dim = {head_dim}
"""
GATED = """
GatedMLP.use_bias = {mlp_bias}
"""
LLAMA_LAYERS = LAYERS.replace('LayerNorm', 'RMSNorm').replace('MLP', 'GatedMLP')
# Without its position encoding.
LLAMA_TEMPLATE = (
  DECODER.replace('LayerNorm', 'RMSNorm') + LLAMA_LAYERS + ATTENTION_BIAS + HEADS + GATED
)
# Biases of queries, keys and values only.
QKV_BIAS = ATTENTION_BIAS.replace('{attention_bias}', 'True', 1).replace(
  '{attention_bias}', 'False'
)

# Layers of two kinds: `local/Block` has a window.
KINDS: Mapping[str, GinReference] = {
  'full_attention': GinReference('Block'),
  'sliding_attention': GinReference('local/Block'),
}
LOCAL = """
local/Block.pattern = @Window()
Window.size = {sliding_window}
"""
LAYER_TYPES = {'layer_types': Many(None, Choice('', KINDS), 1, Layers.high)}


def period(kinds: list[Any]) -> list[Any]:
  """Returns the shortest prefix that is repeated throughout `kinds`."""
  sizes = (size for size in range(1, len(kinds) + 1) if len(kinds) % size == 0)
  return next(kinds[:size] for size in sizes if kinds[:size] * (len(kinds) // size) == kinds)


def every(interval: int) -> Callable[[Fields, int], bool]:
  """The default kinds of layers: all but every `interval`-th layer have a window."""
  return lambda fields, layer: (layer + 1) % interval != 0


def layer_kinds(fields: Fields, is_local: Callable[[Fields, int], bool]) -> list[str]:
  """Returns the name in `KINDS` of each layer.

  Args:
    fields: the fields; `layer_types` may be absent or None.
    is_local: whether a layer has a window, if there are no `layer_types`.
  """
  count, kinds = fields['num_hidden_layers'], fields.get('layer_types')
  if kinds is None:
    local = (is_local(fields, layer) for layer in range(count))
    kinds = ['sliding_attention' if one else 'full_attention' for one in local]
  if len(kinds) != count:
    raise fields.refused('layer_types', kinds, f'a list of num_hidden_layers = {count} names')
  return kinds


def derive_kinds(fields: Fields, is_local: Callable[[Fields, int], bool]) -> dict[str, Any]:
  """Returns the repeated blocks, and whether any of them has a window; arguments as of `layer_kinds`."""
  kinds = layer_kinds(fields, is_local)
  has_local = 'sliding_attention' in kinds
  if has_local and (fields['sliding_window'] is None or not fields.get('use_sliding_window', True)):
    raise fields.refused('layer_types', kinds, 'full_attention only, because no window is in use')
  return {'blocks': [KINDS[kind] for kind in period(kinds)], 'has_local': has_local}


def restore_kinds(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the kinds of all layers and the size of the window."""
  local = [isinstance(one.pattern, Window) for one in values['blocks']]
  names = ['sliding_attention' if one else 'full_attention' for one in local]
  kinds = names * (values['num_hidden_layers'] // len(names))
  used = {'layer_types': kinds, 'use_sliding_window': any(local)}
  return {'sliding_window': None, **values, **used}


PROJECTIONS = tuple(f'self_attn.{name}_proj' for name in 'qkvo')


def llama_rules(
  norms: Sequence[str] = ('input_layernorm', 'post_attention_layernorm'),
  mixer: Sequence[str] = PROJECTIONS,
  feed_forward: Sequence[str] = ('mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj'),
  final: str = 'norm',
) -> Iterator[Rule]:
  """The tensors of Llama; arguments as of `rules.block`, and the name of the last norm."""
  yield Rule('model.embed_tokens.weight', ('embedding.table',))
  yield from block('model.layers.{}', norms=norms, mixer=mixer, feed_forward=feed_forward)
  yield from norm(f'model.{final}', 'body.final_norm')
  yield from dense('lm_head', 'head.out')


def qk_norms(inside: str = '') -> Iterator[Rule]:
  """The norms of queries and keys."""
  for name in ('q_norm', 'k_norm'):
    parameter = f'body.stack.{{}}.mixer.{name}{inside}.scale'
    yield Rule(f'model.layers.{{}}.self_attn.{name}.weight', (parameter,))


def language_model(
  model_type: str,
  name: str,
  fields: Mapping[str, Any],
  *,
  template: str = LLAMA_TEMPLATE,
  names: Mapping[str, Any] = NAMES,
  rope: Rope = Rope(),
  is_local: Callable[[Fields, int], bool] | None = None,
  declared: Mapping[str, Field] | None = None,
  rules: Sequence[Rule] = tuple(llama_rules()),
  choices: Mapping[str, Mapping[Any, str]] | None = None,
  derive: Callable[[Fields], Mapping[str, Any]] = lambda fields: {},
  restore: Callable[[dict[str, Any]], dict[str, Any]] = dict,
  no_effect: Sequence[str] = (),
  bare: str = '',
  **more: Any,
) -> Family:
  """Returns the family of a dense decoder-only language model.

  Args:
    model_type: `model_type` in config.json.
    name: prefix of its classes in transformers.
    fields: name of a field in `TYPES` -> default.
    template: gin text of the model without positions.
    names: placeholders -> fields or constants.
    rope: the rotary positions.
    is_local: whether a layer has a window by default; None: the family has no windows.
    declared: fields that are not in `TYPES`.
    rules: the tensors.
    choices, derive, restore, no_effect: as in `Family`, in addition to those of heads, positions and windows.
    bare: class of the model without its head. '': `name` and Model.
    more: further attributes of the family.
  """

  def default(name: str) -> Field:
    return dataclasses.replace(TYPES[name], default=fields[name], nullable=name in NULLABLE)

  def derived(values: Fields) -> dict[str, Any]:
    heads = values['num_attention_heads']
    result = rope.derive(values) | {
      'head_dim': values.get('head_dim') or max(values['hidden_size'] // heads, 1),
      'num_key_value_heads': values['num_key_value_heads'] or heads,
    }
    if is_local is not None:
      result |= derive_kinds(values, is_local)
    return result | dict(derive(values))

  def restored(values: dict[str, Any]) -> dict[str, Any]:
    values = rope.restore(values)
    return restore(values if is_local is None else restore_kinds(values))

  absent = {name: value for name, value in ABSENT.items() if name not in fields}
  text = fill(fill(template, **names), **absent)
  windows: dict[str, Any] = {}
  if is_local is not None:
    text = text.replace('[@Block]', '{blocks}')
    windows = {'has_local': {True: LOCAL + rope.local_template, False: ''}}
  return Family(
    model_type=model_type,
    architectures=(f'{name}ForCausalLM', bare or f'{name}Model'),
    template=text + rope.template,
    choices={**windows, 'rope_type': SCALINGS, **(choices or {})},
    derive=derived,
    restore=restored,
    declared={**rope.declared, **{one: default(one) for one in fields}, **(declared or {})},
    rules=rules,
    # RoPE works for any position, so the maximum length has no effect.
    no_effect=('max_position_embeddings', *no_effect),
    prefix='model.',
    ignored=(r'model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq', *more.pop('ignored', ())),
    **more,
  )


# Sizes of a first release, by number of layers.
SIZE_32 = {
  'attention_dropout': 0.0,
  'hidden_act': 'silu',
  'hidden_size': 4096,
  'num_attention_heads': 32,
  'num_hidden_layers': 32,
  'rms_norm_eps': 1e-6,
  'tie_word_embeddings': False,
}
LLAMA = language_model(
  'llama',
  'Llama',
  {
    **SIZE_32,
    'attention_bias': False,
    'head_dim': None,
    'intermediate_size': 11008,
    'mlp_bias': False,
    'num_key_value_heads': None,
    'vocab_size': 32000,
  },
  declared={'rope_interleaved': Only(False)},
  no_effect=('is_llama_config', 'max_sequence_length'),
)
MISTRAL = language_model(
  'mistral',
  'Mistral',
  {
    **SIZE_32,
    'head_dim': None,
    'intermediate_size': 14336,
    'num_key_value_heads': 8,
    'sliding_window': 4096,
    'vocab_size': 32000,
  },
  is_local=lambda fields, layer: fields['sliding_window'] is not None,
)


def _above_first(fields: Fields, layer: int) -> bool:
  """Whether a layer of Qwen has a window: those from `max_window_layers` on, if windows are in use."""
  in_use = fields['use_sliding_window'] and fields['sliding_window'] is not None
  return in_use and layer >= fields['max_window_layers']


QWEN = {
  **SIZE_32,
  'intermediate_size': 22016,
  'num_key_value_heads': 32,
  'vocab_size': 151936,
  'max_window_layers': 28,
  'sliding_window': 4096,
  'use_sliding_window': False,
}
QWEN2 = language_model(
  'qwen2',
  'Qwen2',
  QWEN,
  template=LLAMA_TEMPLATE.replace(ATTENTION_BIAS, QKV_BIAS),
  is_local=_above_first,
  declared=LAYER_TYPES,
)
QK_NORM = """
MultiHeadAttention.qk_norm = @RMSNorm
"""
QWEN3 = language_model(
  'qwen3',
  'Qwen3',
  {**QWEN, 'attention_bias': False, 'head_dim': 128},
  template=LLAMA_TEMPLATE + QK_NORM,
  is_local=_above_first,
  declared=LAYER_TYPES,
  rules=(*llama_rules(), *qk_norms()),
)

# Gemma: norms before and after each sublayer with an offset of 1, scaled embeddings, scores with a factor of their own.
GEMMA_TEMPLATE = (
  LLAMA_TEMPLATE.replace('PreNorm', 'Sandwich').replace('{tie_word_embeddings}', '@TiedHead')
  + """
TokenEmbedding.scaled = True
RMSNorm.unit_offset = True
MultiHeadAttention:
  scale = {scale}
  scores = @DotProductScores
DotProductScores.soft_cap = {attn_logit_softcapping}
TiedHead.soft_cap = {final_logit_softcapping}
"""
)
GEMMA = {
  'attention_bias': False,
  'attention_dropout': 0.0,
  'attn_logit_softcapping': None,
  'final_logit_softcapping': None,
  'head_dim': 256,
  'hidden_activation': 'gelu_pytorch_tanh',
  'hidden_size': 2304,
  'intermediate_size': 9216,
  'num_attention_heads': 8,
  'num_hidden_layers': 26,
  'num_key_value_heads': 4,
  'query_pre_attn_scalar': 256,
  'rms_norm_eps': 1e-6,
  'sliding_window': 4096,
}
GEMMA_NAMES = {**NAMES, 'hidden_act': 'hidden_activation'}
GEMMA_DECLARED = {
  **LAYER_TYPES,
  'tie_word_embeddings': Only(True),
  'use_bidirectional_attention': Only(None, others=(False,)),
}


def _sandwich_rules() -> Iterator[Rule]:
  """The tensors of Gemma 2."""
  yield from llama_rules(norms=('input_layernorm', 'pre_feedforward_layernorm'))
  for name, sublayer in (('attention', 'mixer'), ('feedforward', 'feed_forward')):
    parameter = f'body.stack.{{}}.{sublayer}_wiring.branch_norm.scale'
    yield Rule(f'model.layers.{{}}.post_{name}_layernorm.weight', (parameter,))


def _gemma(
  model_type: str,
  name: str,
  defaults: Mapping[str, Any],
  derive: Callable[[Fields], Mapping[str, Any]] = lambda fields: {},
  **more: Any,
) -> Family:
  """Returns a family of Gemma with the defaults that differ from `GEMMA`."""
  return language_model(
    model_type,
    name,
    {**GEMMA, **defaults},
    names=GEMMA_NAMES,
    derive=lambda fields: {'scale': fields['query_pre_attn_scalar'] ** -0.5, **derive(fields)},
    restore=lambda values: {**values, 'query_pre_attn_scalar': round(values['scale'] ** -2)},
    **more,
  )


GEMMA2 = _gemma(
  'gemma2',
  'Gemma2',
  {'attn_logit_softcapping': 50.0, 'final_logit_softcapping': 30.0, 'vocab_size': 256000},
  template=GEMMA_TEMPLATE,
  is_local=every(2),
  declared=GEMMA_DECLARED,
  rules=tuple(_sandwich_rules()),
  # Names of execution in first releases.
  no_effect=('cache_implementation', 'hidden_act'),
)


def _gemma3_derive(fields: Fields) -> dict[str, Any]:
  """Refuses models without a full layer, whose frequencies would have no effect; adds no values."""
  kinds, interval = fields['layer_types'], fields['sliding_window_pattern']
  if kinds is None and interval > (count := fields['num_hidden_layers']):
    raise fields.refused('sliding_window_pattern', interval, f'at most num_hidden_layers = {count}')
  if kinds is not None and 'full_attention' not in kinds:
    raise fields.refused('layer_types', kinds, 'full_attention for some layer')
  return {}


# Layers with and without a window have frequencies of their own.
GEMMA3 = _gemma(
  'gemma3_text',
  'Gemma3',
  {'vocab_size': 262208},
  template=GEMMA_TEMPLATE + QK_NORM,
  rope=Rope(base_default=1e6, part='Block', local='rope_local_base_freq'),
  is_local=lambda fields, layer: every(fields['sliding_window_pattern'])(fields, layer),
  derive=_gemma3_derive,
  declared={**GEMMA_DECLARED, 'sliding_window_pattern': Int(6, 1)},
  rules=(*_sandwich_rules(), *qk_norms()),
  # The last is an attribute that transformers writes and does not read.
  no_effect=('cache_implementation', '_sliding_window_pattern'),
  bare='Gemma3TextModel',
)

# Norms after each sublayer, before the residual connection; norms of all queries and of all keys together.
OLMO2 = language_model(
  'olmo2',
  'Olmo2',
  {
    **SIZE_32,
    'attention_bias': False,
    'intermediate_size': 11008,
    'num_key_value_heads': None,
    'rms_norm_eps': 1e-5,
    'vocab_size': 50304,
  },
  template=LLAMA_TEMPLATE.replace('PreNorm', 'BranchNorm')
  + QK_NORM.replace('@RMSNorm', '@JointNorm'),
  rules=(
    *llama_rules(norms=('post_attention_layernorm', 'post_feedforward_layernorm')),
    *qk_norms(),
  ),
)

# Attention and MLP in parallel after one norm. Dropout is applied to each in transformers, here to their sum: this
# changes training only.
PHI = language_model(
  'phi',
  'Phi',
  {
    'attention_dropout': 0.0,
    'embd_pdrop': 0.0,
    'hidden_act': 'gelu_new',
    'resid_pdrop': 0.0,
    'hidden_size': 2048,
    'intermediate_size': 8192,
    'layer_norm_eps': 1e-5,
    'num_attention_heads': 32,
    'num_hidden_layers': 24,
    'num_key_value_heads': None,
    'vocab_size': 51200,
  },
  template=DECODER.replace('{tie_word_embeddings}', '@LMHead')
  + PARALLEL_LAYERS.replace(
    '  feed_forward_norm = @LayerNorm\n', '  dropout_rate = {hidden_dropout}\n'
  )
  + HEADS
  + 'LMHead.use_bias = True\n',
  names=LAYER_NORM_NAMES,
  rope=Rope(fraction='partial_rotary_factor', default=0.5),
  declared={'qk_layernorm': Only(False), 'tie_word_embeddings': Only(False)},
  rules=tuple(
    llama_rules(
      norms=('input_layernorm', 'post_attention_layernorm'),
      mixer=('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.dense'),
      feed_forward=('mlp.fc1', 'mlp.fc2'),
      final='final_layernorm',
    )
  ),
)


PHI3 = language_model(
  'phi3',
  'Phi3',
  {
    **SIZE_32,
    'embd_pdrop': 0.0,
    'resid_pdrop': 0.0,
    'hidden_size': 3072,
    'intermediate_size': 8192,
    'num_key_value_heads': None,
    'rms_norm_eps': 1e-5,
    'sliding_window': None,
    'vocab_size': 32064,
  },
  rope=Rope(fraction='partial_rotary_factor'),
  is_local=lambda fields, layer: fields['sliding_window'] is not None,
  declared={'attention_bias': Only(False)},
  rules=(
    *llama_rules(mixer=('self_attn.qkv_proj', 'self_attn.o_proj'), feed_forward=()),
    *dense(
      'model.layers.{}.mlp.gate_up_proj',
      *(f'body.stack.{{}}.feed_forward.{name}' for name in ('gate', 'up')),
    ),
    *dense('model.layers.{}.mlp.down_proj', 'body.stack.{}.feed_forward.down'),
  ),
  # Read only by a scaling that is refused.
  no_effect=('original_max_position_embeddings',),
)

# `nope/Block` has no positions.
NO_POSITIONS = """
nope/Block.encoding = None
"""
SMOLLM3_BLOCKS = {1: GinReference('Block'), 0: GinReference('nope/Block')}


def _smollm3_derive(fields: Fields) -> dict[str, Any]:
  """Returns the repeated blocks; every fourth layer has no positions by default."""
  count, interval = fields['num_hidden_layers'], fields['no_rope_layer_interval']
  if fields['layer_types'] not in (None, ['full_attention'] * count):
    raise fields.refused('layer_types', fields['layer_types'], 'full_attention for each layer')
  ropes = fields['no_rope_layers']
  if ropes is None:
    ropes = [int((layer + 1) % interval != 0) for layer in range(count)]
  if len(ropes) != count:
    raise fields.refused('no_rope_layers', ropes, f'a list of num_hidden_layers = {count} numbers')
  return {'blocks': [SMOLLM3_BLOCKS[one] for one in period(ropes)], 'has_nope': 0 in ropes}


def _smollm3_restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds which layers have positions."""
  ropes = [int(one.encoding is not None) for one in values['blocks']]
  count = values['num_hidden_layers']
  return {**values, 'no_rope_layers': ropes * (count // len(ropes))}


SMOLLM3 = language_model(
  'smollm3',
  'SmolLM3',
  {
    **SIZE_32,
    'attention_bias': False,
    'hidden_size': 2048,
    'intermediate_size': 11008,
    'mlp_bias': False,
    'num_attention_heads': 16,
    'num_hidden_layers': 36,
    'num_key_value_heads': 4,
    'tie_word_embeddings': True,
    'vocab_size': 128256,
  },
  template=LLAMA_TEMPLATE.replace('[@Block]', '{blocks}'),
  rope=Rope(base_default=2e6, part='Block'),
  choices={'has_nope': {True: NO_POSITIONS, False: ''}},
  derive=_smollm3_derive,
  restore=_smollm3_restore,
  declared={
    **LAYER_TYPES,
    'no_rope_layer_interval': Int(4, 1),
    'no_rope_layers': Many(None, Int(0, 0, 1), 1, Layers.high),
    'sliding_window': Only(None),
    'use_sliding_window': Only(False),
  },
  no_effect=('max_window_layers',),
)
