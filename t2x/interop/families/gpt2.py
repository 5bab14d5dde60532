"""GPT-2: `GPT2LMHeadModel`, `GPT2Model`."""

from typing import Any

from t2x.foreign import Fields, Only
from t2x.interop.family import (
  Family,
  Layers,
  Size,
  activation,
  activation_field,
  activation_name,
  fields_of_attention,
  positive,
  rate,
  write,
)
from t2x.interop.layouts import CONV1D, CONV1D_FROM_HEADS
from t2x.interop.rules import Rule, dense, norm

__all__ = ['GPT2']

GIN = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {n_embd}
  embedding = @TokenEmbedding
  body = @Decoder
  head = @TiedHead
TokenEmbedding.vocab_size = {vocab_size}
LearnedPositions.max_length = {n_positions}
Decoder:
  stack = @Stack
  encoding = @LearnedPositions
  input_dropout = {embd_pdrop}
  final_norm = @LayerNorm
Stack:
  num_layers = {n_layer}
  blocks = [@Block]
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  wiring = @PreNorm
PreNorm:
  norm = @LayerNorm
  dropout_rate = {resid_pdrop}
LayerNorm.epsilon = {layer_norm_epsilon}
MultiHeadAttention:
  num_heads = {n_head}
  dropout_rate = {attn_pdrop}
MLP:
  hidden_dim = {hidden_dim}
  activation = {activation}
"""

BODY = 'body.stack.{}'
RULES = (
  Rule('transformer.wte.weight', ('embedding.table',)),
  Rule('transformer.wpe.weight', ('body.encoding.table',)),
  *norm('transformer.h.{}.ln_1', f'{BODY}.mixer_wiring.norm'),
  *dense(
    'transformer.h.{}.attn.c_attn',
    *(f'{BODY}.mixer.{part}' for part in 'qkv'),
    layout=CONV1D,
  ),
  *dense('transformer.h.{}.attn.c_proj', f'{BODY}.mixer.out', layout=CONV1D_FROM_HEADS),
  *norm('transformer.h.{}.ln_2', f'{BODY}.feed_forward_wiring.norm'),
  *dense('transformer.h.{}.mlp.c_fc', f'{BODY}.feed_forward.up', layout=CONV1D),
  *dense('transformer.h.{}.mlp.c_proj', f'{BODY}.feed_forward.down', layout=CONV1D),
  *norm('transformer.ln_f', 'body.final_norm'),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  return write(
    GIN,
    fields,
    hidden_dim=fields['n_inner'] or 4 * fields['n_embd'],
    activation=activation(fields, 'activation_function'),
  )


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  (block,) = model.body.stack.blocks
  return 'GPT2LMHeadModel', {
    'activation_function': activation_name(block.feed_forward.activation),
    'attn_pdrop': block.mixer.dropout_rate,
    'embd_pdrop': model.body.input_dropout,
    'layer_norm_epsilon': model.body.final_norm.epsilon,
    'n_embd': model.embedding.table.shape[-1],
    'n_head': fields_of_attention(block.mixer)[0],
    'n_inner': block.feed_forward.up.kernel.shape[-1],
    'n_layer': model.body.stack.num_layers,
    'n_positions': model.body.encoding.max_length,
    'resid_pdrop': block.mixer_wiring.dropout_rate,
    'vocab_size': model.spec.vocab_size,
  }


GPT2 = Family(
  model_type='gpt2',
  architectures=('GPT2LMHeadModel', 'GPT2Model'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    'activation_function': activation_field('gelu_new'),
    'add_cross_attention': Only(False),
    'attn_pdrop': rate(0.1),
    'embd_pdrop': rate(0.1),
    'layer_norm_epsilon': positive(1e-5, 1.0),
    'n_embd': Size(768),
    'n_head': Size(12),
    'n_inner': Size(None),
    'n_layer': Layers(12),
    'n_positions': Size(1024),
    'resid_pdrop': rate(0.1),
    'scale_attn_by_inverse_layer_idx': Only(False),
    'scale_attn_weights': Only(True),
    'tie_word_embeddings': Only(True),
    'vocab_size': Size(50257),
  },
  prefix='transformer.',
  # Causal masks were saved once.
  ignored=(r'lm_head\.weight', r'transformer\.h\.\d+\.attn\.(bias|masked_bias)'),
)
