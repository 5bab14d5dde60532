"""GPT-Neo: `GPTNeoForCausalLM`, `GPTNeoModel`. Mixes global and local attention, with unscaled scores."""

from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Field, Fields, Int, Many, Text, shown
from t2x.interop.family import Family, Layers, activation, positive, rates, sizes, tied
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import DECODER, LAYERS, LEARNED_POSITIONS, Part, fill
from t2x.layers import Full, Window

SCORES = """
MultiHeadAttention:
  use_bias = False
  scale = 1.0
"""
LOCAL = """
local/Block.pattern = @Window()
Window.size = {window_size}
"""
BLOCKS = {'global': Part('Block'), 'local': Part('local/Block')}


class Kinds(Field):
  """The attention types of all layers: [[types, number of repeats], ...]."""

  @property
  def wanted(self):
    return f"a list of [['global' or 'local', ...], repeats] with at most {Layers.high} layers"

  def accepts(self, value):
    return (
      isinstance(value, list)
      and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
      and all(isinstance(kinds, list) and Layers(1).accepts(times) for kinds, times in value)
      and all(isinstance(k, str) and k in BLOCKS for kinds, _ in value for k in kinds)
      and sum(len(kinds) * times for kinds, times in value) <= Layers.high
    )


def derive(fields: Fields) -> dict[str, Any]:
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
    'blocks': [BLOCKS[kind] for kind in _period(kinds)],
    'has_local': 'local' in kinds,
    'intermediate_size': fields['intermediate_size'] or 4 * fields['hidden_size'],
  }


def _period(kinds: list[str]) -> list[str]:
  """Returns the shortest prefix that is repeated throughout `kinds`."""
  sizes = (size for size in range(1, len(kinds) + 1) if len(kinds) % size == 0)
  return next(kinds[:size] for size in sizes if kinds[:size] * (len(kinds) // size) == kinds)


def restore(values: dict[str, Any]) -> dict[str, Any]:
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
    DECODER + LEARNED_POSITIONS + LAYERS.replace('[@Block]', '{blocks}') + SCORES,
    embedding_dropout='embed_dropout',
    hidden_act='activation_function',
    hidden_dropout='resid_dropout',
    layer_norm_eps='layer_norm_epsilon',
    num_attention_heads='num_heads',
    num_hidden_layers='num_layers',
  ),
  choices={'has_local': {True: LOCAL, False: ''}},
  derive=derive,
  restore=restore,
  declared={
    **rates(attention_dropout=0.0, embed_dropout=0.0, resid_dropout=0.0),
    **sizes(hidden_size=2048, intermediate_size=None, max_position_embeddings=2048),
    **sizes(num_heads=16, vocab_size=50257),
    'activation_function': activation('gelu_new'),
    'attention_layers': Many(None, Text('')),
    'attention_types': Kinds([[['global', 'local'], 12]]),
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
