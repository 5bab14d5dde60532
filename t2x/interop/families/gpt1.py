"""GPT-1: `OpenAIGPTLMHeadModel`, `OpenAIGPTModel`. Post-norm, no norm after the last layer."""

from typing import Any

from t2x.foreign import Choice, Fields, Only
from t2x.interop.family import (
  Family,
  Layers,
  Part,
  Size,
  fields_of_attention,
  positive,
  rate,
  write,
)
from t2x.interop.layouts import CONV1D, CONV1D_FROM_HEADS
from t2x.interop.rules import Rule, dense, norm
from t2x.layers import gelu, relu, silu

__all__ = ['GPT1']

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
  final_norm = None
Stack:
  num_layers = {n_layer}
  blocks = [@Block]
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  wiring = @PostNorm
PostNorm:
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
# Here 'gelu' is the approximation by tanh.
ACTIVATIONS = {'gelu': gelu, 'relu': relu, 'silu': silu, 'swish': silu}

LAYER, BODY = 'transformer.h.{}', 'body.stack.{}'
RULES = (
  Rule('transformer.tokens_embed.weight', ('embedding.table',)),
  Rule('transformer.positions_embed.weight', ('body.encoding.table',)),
  *dense(f'{LAYER}.attn.c_attn', *(f'{BODY}.mixer.{part}' for part in 'qkv'), layout=CONV1D),
  *dense(f'{LAYER}.attn.c_proj', f'{BODY}.mixer.out', layout=CONV1D_FROM_HEADS),
  *norm(f'{LAYER}.ln_1', f'{BODY}.mixer_wiring.norm'),
  *dense(f'{LAYER}.mlp.c_fc', f'{BODY}.feed_forward.up', layout=CONV1D),
  *dense(f'{LAYER}.mlp.c_proj', f'{BODY}.feed_forward.down', layout=CONV1D),
  *norm(f'{LAYER}.ln_2', f'{BODY}.feed_forward_wiring.norm'),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  activation = Part(ACTIVATIONS[fields['afn']].__name__)
  return write(GIN, fields, hidden_dim=4 * fields['n_embd'], activation=activation)


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  (block,) = model.body.stack.blocks
  names = {function: name for name, function in reversed(ACTIVATIONS.items())}
  return 'OpenAIGPTLMHeadModel', {
    'afn': names[block.feed_forward.activation],
    'attn_pdrop': block.mixer.dropout_rate,
    'embd_pdrop': model.body.input_dropout,
    'layer_norm_epsilon': block.mixer_wiring.norm.epsilon,
    'n_embd': model.embedding.table.shape[-1],
    'n_head': fields_of_attention(block.mixer)[0],
    'n_layer': model.body.stack.num_layers,
    'n_positions': model.spec.max_length,
    'resid_pdrop': block.mixer_wiring.dropout_rate,
    'vocab_size': model.spec.vocab_size,
  }


GPT1 = Family(
  model_type='openai-gpt',
  architectures=('OpenAIGPTLMHeadModel', 'OpenAIGPTModel'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    'afn': Choice('gelu', ACTIVATIONS),
    'attn_pdrop': rate(0.1),
    'embd_pdrop': rate(0.1),
    'layer_norm_epsilon': positive(1e-5, 1.0),
    'n_embd': Size(768),
    'n_head': Size(12),
    'n_layer': Layers(12),
    'n_positions': Size(512),
    'resid_pdrop': rate(0.1),
    'tie_word_embeddings': Only(True),
    'vocab_size': Size(40478),
  },
  prefix='transformer.',
  # Causal masks and positions were saved once.
  ignored=(
    r'lm_head\.weight',
    r'transformer\.h\.\d+\.attn\.bias',
    r'transformer\.position_ids',
  ),
)
