"""Decoder-only language models: GPT-1, GPT-2, GPT-Neo, GPT-NeoX (Pythia) and OPT."""

from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Bool, Field, Fields, Int, Many, Only, Text, shown
from t2x.interop.families.dense import LOCAL, period
from t2x.interop.family import (
  Family,
  Layers,
  Size,
  activation,
  only,
  positive,
  rates,
  sizes,
  tied,
)
from t2x.interop.layouts import CONV1D, GROUPED
from t2x.interop.rope import SCALINGS, Rope
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import (
  ATTENTION_BIAS,
  DECODER,
  LAYERS,
  LEARNED_POSITIONS,
  PARALLEL_LAYERS,
  GinReference,
  fill,
)
from t2x.layers import Full, Window

# GPT-1 and GPT-2: names in the templates -> fields, the fields of both, and the layers.
GPT_NAMES = {
  'attention_dropout': 'attn_pdrop',
  'embedding_dropout': 'embd_pdrop',
  'hidden_dropout': 'resid_pdrop',
  'hidden_size': 'n_embd',
  'layer_norm_eps': 'layer_norm_epsilon',
  'max_position_embeddings': 'n_positions',
  'num_attention_heads': 'n_head',
  'num_hidden_layers': 'n_layer',
}
GPT_DECLARED = {
  **rates(attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1),
  **sizes(n_embd=768, n_head=12),
  'layer_norm_epsilon': positive(1e-5, 1.0),
  'n_layer': Layers(12),
  'tie_word_embeddings': tied(True),
}
GPT_BLOCK = tuple(
  block(
    'transformer.h.{}',
    norms=('ln_1', 'ln_2'),
    mixer=('attn.c_attn', 'attn.c_proj'),
    feed_forward=('mlp.c_fc', 'mlp.c_proj'),
    layout=CONV1D,
  )
)

# Post-norm, without a norm after the last layer.
GPT1 = Family(
  model_type='openai-gpt',
  architectures=('OpenAIGPTLMHeadModel', 'OpenAIGPTModel'),
  template=fill(
    DECODER.replace('final_norm = @LayerNorm', 'final_norm = None')
    + LEARNED_POSITIONS
    + LAYERS.replace('PreNorm', 'PostNorm'),
    hidden_act='afn',
    **GPT_NAMES,
  ),
  derive=lambda fields: {'intermediate_size': 4 * fields['n_embd']},
  declared={
    **GPT_DECLARED,
    **sizes(n_positions=512, vocab_size=40478),
    # GPT-1 uses the name 'gelu' for the tanh approximation.
    'afn': activation('gelu', {'gelu': 'gelu', 'relu': 'relu', 'silu': 'silu', 'swish': 'silu'}),
  },
  no_effect=('n_ctx', 'n_special', 'predict_special_tokens'),
  rules=(
    Rule('transformer.tokens_embed.weight', ('embedding.table',)),
    Rule('transformer.positions_embed.weight', ('body.encoding.table',)),
    *GPT_BLOCK,
    *dense('lm_head', 'head.out'),
  ),
  prefix='transformer.',
  # Old files contain causal masks and positions.
  ignored=(
    r'lm_head\.weight',
    r'transformer\.h\.\d+\.attn\.bias',
    r'transformer\.position_ids',
  ),
)

GPT2 = Family(
  model_type='gpt2',
  architectures=('GPT2LMHeadModel', 'GPT2Model'),
  template=fill(
    DECODER + LEARNED_POSITIONS + LAYERS,
    hidden_act='activation_function',
    intermediate_size='n_inner',
    **GPT_NAMES,
  ),
  derive=lambda fields: {'n_inner': fields['n_inner'] or 4 * fields['n_embd']},
  declared={
    **GPT_DECLARED,
    **sizes(n_inner=None, n_positions=1024, vocab_size=50257),
    'activation_function': activation('gelu_new'),
    'scale_attn_by_inverse_layer_idx': Only(False),
    'scale_attn_weights': Only(True),
  },
  no_effect=('n_ctx',),
  rules=(
    Rule('transformer.wte.weight', ('embedding.table',)),
    Rule('transformer.wpe.weight', ('body.encoding.table',)),
    *GPT_BLOCK,
    *norm('transformer.ln_f', 'body.final_norm'),
    *dense('lm_head', 'head.out'),
  ),
  prefix='transformer.',
  # Old files contain causal masks.
  ignored=(r'lm_head\.weight', r'transformer\.h\.\d+\.attn\.(bias|masked_bias)'),
)

# GPT-Neo mixes global and local attention, with unscaled scores.
NEO_SCORES = """
MultiHeadAttention:
  use_bias = False
  scale = 1.0
"""
NEO_LOCAL = LOCAL.replace('sliding_window', 'window_size')
NEO_BLOCKS = {'global': GinReference('Block'), 'local': GinReference('local/Block')}


class NeoKinds(Field):
  """The attention types of all layers: [[types, number of repeats], ...]."""

  @property
  def wanted(self):
    return f"a list of [['global' or 'local', ...], repeats] with at most {Layers.high} layers"

  def accepts(self, value):
    return (
      isinstance(value, list)
      and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
      and all(isinstance(kinds, list) and Layers(1).accepts(times) for kinds, times in value)
      and all(isinstance(k, str) and k in NEO_BLOCKS for kinds, _ in value for k in kinds)
      and sum(len(kinds) * times for kinds, times in value) <= Layers.high
    )


def _neo_derive(fields: Fields) -> dict[str, Any]:
  """Returns the repeated blocks, and whether any of them is local."""
  kinds = [kind for group, times in fields['attention_types'] for kind in group * times]
  if len(kinds) != fields['num_layers']:
    raise UserError(
      f'{fields.where}: attention_types = {shown(fields["attention_types"])} defines {len(kinds)} '
      f'layers, but num_layers = {fields["num_layers"]}'
    )
  if fields['attention_layers'] not in (None, kinds):
    raise fields.refused('attention_layers', fields['attention_layers'], shown(kinds))
  return {
    'blocks': [NEO_BLOCKS[kind] for kind in period(kinds)],
    'has_local': 'local' in kinds,
    'intermediate_size': fields['intermediate_size'] or 4 * fields['hidden_size'],
  }


def _neo_restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the attention types and the window size."""
  patterns = [block.pattern for block in values['blocks']]
  kinds = ['global' if pattern == Full() else 'local' for pattern in patterns]
  (size,) = {pattern.size for pattern in patterns if isinstance(pattern, Window)} or {256}
  repeats = values['num_layers'] // len(kinds)
  return {**values, 'attention_types': [[kinds, repeats]], 'window_size': size}


GPT_NEO = Family(
  model_type='gpt_neo',
  architectures=('GPTNeoForCausalLM', 'GPTNeoModel'),
  template=fill(
    DECODER + LEARNED_POSITIONS + LAYERS.replace('[@Block]', '{blocks}') + NEO_SCORES,
    embedding_dropout='embed_dropout',
    hidden_act='activation_function',
    hidden_dropout='resid_dropout',
    layer_norm_eps='layer_norm_epsilon',
    num_attention_heads='num_heads',
    num_hidden_layers='num_layers',
  ),
  choices={'has_local': {True: NEO_LOCAL, False: ''}},
  derive=_neo_derive,
  restore=_neo_restore,
  declared={
    **rates(attention_dropout=0.0, embed_dropout=0.0, resid_dropout=0.0),
    **sizes(hidden_size=2048, intermediate_size=None, max_position_embeddings=2048),
    **sizes(num_heads=16, vocab_size=50257),
    'activation_function': activation('gelu_new'),
    'attention_layers': Many(None, Text('')),
    'attention_types': NeoKinds([[['global', 'local'], 12]]),
    'layer_norm_epsilon': positive(1e-5, 1.0),
    'num_layers': Layers(24),
    'tie_word_embeddings': tied(True),
    'window_size': Int(256, 1),
  },
  rules=(
    Rule('transformer.wte.weight', ('embedding.table',)),
    Rule('transformer.wpe.weight', ('body.encoding.table',)),
    *block(
      'transformer.h.{}',
      norms=('ln_1', 'ln_2'),
      mixer=tuple(f'attn.attention.{name}_proj' for name in ('q', 'k', 'v', 'out')),
      feed_forward=('mlp.c_fc', 'mlp.c_proj'),
    ),
    *norm('transformer.ln_f', 'body.final_norm'),
    *dense('lm_head', 'head.out'),
  ),
  prefix='transformer.',
  # Old files contain masks.
  ignored=(r'lm_head\.weight', r'transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)'),
)

NEOX_ROPE = Rope('rotary_emb_base', 'rotary_pct', 0.25)
GPT_NEOX = Family(
  model_type='gpt_neox',
  architectures=('GPTNeoXForCausalLM', 'GPTNeoXModel'),
  template=fill(DECODER, embedding_dropout='hidden_dropout') + NEOX_ROPE.template + ATTENTION_BIAS,
  choices={
    'use_parallel_residual': {True: PARALLEL_LAYERS, False: LAYERS},
    'rope_type': SCALINGS,
  },
  derive=NEOX_ROPE.derive,
  restore=NEOX_ROPE.restore,
  declared={
    **NEOX_ROPE.declared,
    **rates(attention_dropout=0.0),
    **only(0.0, 'attention_probs_dropout_prob', 'hidden_dropout', 'hidden_dropout_prob'),
    **sizes(hidden_size=6144, intermediate_size=24576, num_attention_heads=64, vocab_size=50432),
    **{name: Bool(True) for name in ('attention_bias', 'use_parallel_residual')},
    'hidden_act': activation('gelu'),
    'layer_norm_eps': positive(1e-5, 1.0),
    'num_hidden_layers': Layers(44),
    'tie_word_embeddings': tied(False),
  },
  no_effect=('max_position_embeddings',),
  rules=(
    Rule('gpt_neox.embed_in.weight', ('embedding.table',)),
    *block(
      'gpt_neox.layers.{}',
      norms=('input_layernorm', 'post_attention_layernorm'),
      mixer=('attention.query_key_value', 'attention.dense'),
      feed_forward=('mlp.dense_h_to_4h', 'mlp.dense_4h_to_h'),
      qkv=GROUPED,
    ),
    *norm('gpt_neox.final_layer_norm', 'body.final_norm'),
    *dense('lm_head', 'head.out'),
  ),
  prefix='gpt_neox.',
  renamed={r'^embed_out\.': 'lm_head.'},
  ignored=(r'lm_head\.weight|.*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)',),
)


def _opt_derive(fields: Fields) -> dict[str, Any]:
  """Refuses embeddings of another width than the layers (opt-350m); adds no values."""
  width = fields['word_embed_proj_dim']
  if width not in (None, fields['hidden_size']):
    raise fields.refused('word_embed_proj_dim', width, f'hidden_size = {fields["hidden_size"]}')
  return {}


# Pre-norm OPT, which includes every release except opt-350m.
OPT = Family(
  model_type='opt',
  architectures=('OPTForCausalLM', 'OPTModel'),
  template=fill(
    f'{DECODER}{LEARNED_POSITIONS}LearnedPositions.offset = 2\n{LAYERS}',
    embedding_dropout=0.0,
    hidden_act='activation_function',
    hidden_dropout='dropout',
    intermediate_size='ffn_dim',
    layer_norm_eps=1e-5,
  ),
  declared={
    **rates(attention_dropout=0.0, dropout=0.1),
    **sizes(ffn_dim=3072, hidden_size=768, max_position_embeddings=2048),
    **sizes(num_attention_heads=12, vocab_size=50272),
    **only(True, 'do_layer_norm_before', 'enable_bias', 'layer_norm_elementwise_affine'),
    **only(0.0, 'activation_dropout', 'layerdrop'),
    '_remove_final_layer_norm': Only(False),
    'activation_function': activation('relu'),
    'num_hidden_layers': Layers(12),
    'tie_word_embeddings': tied(True),
    'word_embed_proj_dim': Size(None),
  },
  derive=_opt_derive,
  rules=(
    Rule('model.decoder.embed_tokens.weight', ('embedding.table',)),
    Rule('model.decoder.embed_positions.weight', ('body.encoding.table',)),
    *block(
      'model.decoder.layers.{}',
      norms=('self_attn_layer_norm', 'final_layer_norm'),
      mixer=[f'self_attn.{name}_proj' for name in ('q', 'k', 'v', 'out')],
      feed_forward=('fc1', 'fc2'),
    ),
    *norm('model.decoder.final_layer_norm', 'body.final_norm'),
    *dense('lm_head', 'head.out'),
  ),
  prefix='model.',
  ignored=(r'lm_head\.weight',),
)
