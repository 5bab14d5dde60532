"""GPT-Neo: `GPTNeoForCausalLM`, `GPTNeoModel`. Global and local layers in turn, scores not scaled."""

from typing import Any

from t2x.errors import UserError
from t2x.foreign import Field, Fields, Int, Only, shown
from t2x.interop.family import (
  Family,
  Layers,
  Part,
  Size,
  activation,
  activation_field,
  activation_name,
  fields_of_attention,
  positive,
  rate,
  write,
)
from t2x.interop.layouts import LINEAR_FROM_HEADS
from t2x.interop.rules import Rule, dense, norm
from t2x.layers import Full, Window

__all__ = ['GPT_NEO']

GIN = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {hidden_size}
  embedding = @TokenEmbedding
  body = @Decoder
  head = @TiedHead
TokenEmbedding.vocab_size = {vocab_size}
LearnedPositions.max_length = {max_position_embeddings}
Decoder:
  stack = @Stack
  encoding = @LearnedPositions
  input_dropout = {embed_dropout}
  final_norm = @LayerNorm
Stack:
  num_layers = {num_layers}
  blocks = {blocks}
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  wiring = @PreNorm
PreNorm:
  norm = @LayerNorm
  dropout_rate = {resid_dropout}
LayerNorm.epsilon = {layer_norm_epsilon}
MultiHeadAttention:
  num_heads = {num_heads}
  use_bias = False
  scale = 1.0
  dropout_rate = {attention_dropout}
MLP:
  hidden_dim = {hidden_dim}
  activation = {activation}
"""
LOCAL = """
local/Block.pattern = @Window()
Window.size = {window_size}
"""
BLOCKS = {'global': Part('Block'), 'local': Part('local/Block')}

LAYER, BODY = 'transformer.h.{}', 'body.stack.{}'
RULES = (
  Rule('transformer.wte.weight', ('embedding.table',)),
  Rule('transformer.wpe.weight', ('body.encoding.table',)),
  *norm(f'{LAYER}.ln_1', f'{BODY}.mixer_wiring.norm'),
  *dense(f'{LAYER}.attn.attention.q_proj', f'{BODY}.mixer.q'),
  *dense(f'{LAYER}.attn.attention.k_proj', f'{BODY}.mixer.k'),
  *dense(f'{LAYER}.attn.attention.v_proj', f'{BODY}.mixer.v'),
  *dense(f'{LAYER}.attn.attention.out_proj', f'{BODY}.mixer.out', layout=LINEAR_FROM_HEADS),
  *norm(f'{LAYER}.ln_2', f'{BODY}.feed_forward_wiring.norm'),
  *dense(f'{LAYER}.mlp.c_fc', f'{BODY}.feed_forward.up'),
  *dense(f'{LAYER}.mlp.c_proj', f'{BODY}.feed_forward.down'),
  *norm('transformer.ln_f', 'body.final_norm'),
)


class Kinds(Field):
  """The kinds of all layers: [[kinds, how often they are repeated], ...]."""

  @property
  def wanted(self):
    return f"lists [['global' or 'local', ...], repeats] of at most {Layers.high} layers together"

  def accepts(self, value):
    return (
      isinstance(value, list)
      and all(isinstance(some, list) and len(some) == 2 for some in value)
      and all(isinstance(kinds, list) and Layers(1).accepts(times) for kinds, times in value)
      and all(isinstance(k, str) and k in BLOCKS for kinds, _ in value for k in kinds)
      and sum(len(kinds) * times for kinds, times in value) <= Layers.high
    )


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  kinds = [kind for some, times in fields['attention_types'] for kind in some * times]
  if len(kinds) != fields['num_layers']:
    raise UserError(
      f'{fields.where}: attention_types = {shown(fields["attention_types"])} names {len(kinds)} '
      f'layers, and num_layers = {fields["num_layers"]}'
    )
  text = write(
    GIN,
    fields,
    blocks=[BLOCKS[kind] for kind in _repeated(kinds)],
    hidden_dim=fields['intermediate_size'] or 4 * fields['hidden_size'],
    activation=activation(fields, 'activation_function'),
  )
  return text + write(LOCAL, fields) if 'local' in kinds else text


def _repeated(kinds: list[str]) -> list[str]:
  """The shortest sequence that, repeated, gives all."""
  sizes = (size for size in range(1, len(kinds) + 1) if len(kinds) % size == 0)
  return next(kinds[:size] for size in sizes if kinds[:size] * (len(kinds) // size) == kinds)


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  block, *others = model.body.stack.blocks
  patterns = [one.pattern for one in (block, *others)]
  kinds = ['global' if pattern == Full() else 'local' for pattern in patterns]
  (size,) = {pattern.size for pattern in patterns if isinstance(pattern, Window)} or {256}
  return 'GPTNeoForCausalLM', {
    'activation_function': activation_name(block.feed_forward.activation),
    'attention_dropout': block.mixer.dropout_rate,
    'attention_types': [[kinds, model.body.stack.num_repeats]],
    'embed_dropout': model.body.input_dropout,
    'hidden_size': model.embedding.table.shape[-1],
    'intermediate_size': block.feed_forward.up.kernel.shape[-1],
    'layer_norm_epsilon': model.body.final_norm.epsilon,
    'max_position_embeddings': model.spec.max_length,
    'num_heads': fields_of_attention(block.mixer)[0],
    'num_layers': model.body.stack.num_layers,
    'resid_dropout': block.mixer_wiring.dropout_rate,
    'vocab_size': model.spec.vocab_size,
    'window_size': size,
  }


GPT_NEO = Family(
  model_type='gpt_neo',
  architectures=('GPTNeoForCausalLM', 'GPTNeoModel'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    'activation_function': activation_field('gelu_new'),
    'attention_dropout': rate(0.0),
    'attention_types': Kinds([[['global', 'local'], 12]]),
    'embed_dropout': rate(0.0),
    'hidden_size': Size(2048),
    'intermediate_size': Size(None),
    'layer_norm_epsilon': positive(1e-5, 1.0),
    'max_position_embeddings': Size(2048),
    'num_heads': Size(16),
    'num_layers': Layers(24),
    'resid_dropout': rate(0.0),
    'tie_word_embeddings': Only(True),
    'vocab_size': Size(50257),
    'window_size': Int(256, 1),
  },
  prefix='transformer.',
  # Masks were saved once.
  ignored=(r'lm_head\.weight', r'transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)'),
)
