"""Llama: `LlamaForCausalLM`, `LlamaModel`."""

from collections.abc import Mapping
from typing import Any

from t2x.foreign import REQUIRED, Bool, Choice, Field, Fields, Int, Object
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
from t2x.layers import LinearScaling, Llama3Scaling, RoPEScaling
from t2x.models import TiedHead

__all__ = ['LLAMA']

GIN = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {hidden_size}
  embedding = @TokenEmbedding
  body = @Decoder
  head = {head}
TokenEmbedding.vocab_size = {vocab_size}
Decoder:
  stack = @Stack
  encoding = @RoPE
  final_norm = @RMSNorm
RoPE.base = {rope_theta}
Stack:
  num_layers = {num_hidden_layers}
  blocks = [@Block]
Block:
  mixer = @MultiHeadAttention
  feed_forward = @GatedMLP
  wiring = @PreNorm
PreNorm.norm = @RMSNorm
RMSNorm.epsilon = {rms_norm_eps}
MultiHeadAttention:
  num_heads = {num_attention_heads}
  num_kv_heads = {num_kv_heads}
  head_dim = {head_size}
  use_bias = {attention_bias}
  out_bias = {attention_bias}
  dropout_rate = {attention_dropout}
GatedMLP:
  hidden_dim = {intermediate_size}
  activation = {activation}
  use_bias = {mlp_bias}
"""

LINEAR = """
RoPE.scaling = @LinearScaling()
LinearScaling.factor = {factor}
"""
LLAMA3 = """
RoPE.scaling = @Llama3Scaling()
Llama3Scaling:
  factor = {factor}
  max_length = {original_max_position_embeddings}
  low_frequency = {low_freq_factor}
  high_frequency = {high_freq_factor}
"""
SCALINGS = {'default': '', 'linear': LINEAR, 'llama3': LLAMA3}
# Of `rope_parameters` in newer files; of `rope_scaling` in older ones, where `rope_theta` is a field of its own.
ROPE: Mapping[str, Field] = {
  'rope_theta': positive(None),
  'rope_type': Choice(None, SCALINGS),
  'type': Choice(None, SCALINGS),
}
FACTORS: Mapping[str, Mapping[str, Field]] = {
  'default': {},
  'linear': {'factor': positive(REQUIRED)},
  'llama3': {
    'factor': positive(REQUIRED),
    'high_freq_factor': positive(REQUIRED),
    'low_freq_factor': positive(REQUIRED),
    'original_max_position_embeddings': Int(REQUIRED, 1),
  },
}

BODY = 'body.stack.{}'
RULES = (
  Rule('model.embed_tokens.weight', ('embedding.table',)),
  *norm('model.layers.{}.input_layernorm', f'{BODY}.mixer_wiring.norm'),
  *dense('model.layers.{}.self_attn.q_proj', f'{BODY}.mixer.q'),
  *dense('model.layers.{}.self_attn.k_proj', f'{BODY}.mixer.k'),
  *dense('model.layers.{}.self_attn.v_proj', f'{BODY}.mixer.v'),
  *dense('model.layers.{}.self_attn.o_proj', f'{BODY}.mixer.out', layout=LINEAR_FROM_HEADS),
  *norm('model.layers.{}.post_attention_layernorm', f'{BODY}.feed_forward_wiring.norm'),
  *dense('model.layers.{}.mlp.gate_proj', f'{BODY}.feed_forward.gate'),
  *dense('model.layers.{}.mlp.up_proj', f'{BODY}.feed_forward.up'),
  *dense('model.layers.{}.mlp.down_proj', f'{BODY}.feed_forward.down'),
  *norm('model.norm', 'body.final_norm'),
  *dense('lm_head', 'head.out'),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  name = 'rope_parameters' if fields['rope_parameters'] else 'rope_scaling'
  given, where = fields[name] or {}, f'{fields.where}: {name}'
  rope = Fields(given, ROPE, where)
  kind = rope['rope_type'] or rope['type'] or 'default'
  # The bare model has no head; one that costs nothing stands in.
  tied = fields['tie_word_embeddings'] or fields['architecture'] == 'LlamaModel'
  text = write(
    GIN,
    fields,
    rope_theta=rope['rope_theta'] or fields['rope_theta'],
    head=Part('TiedHead' if tied else 'LMHead'),
    num_kv_heads=fields['num_key_value_heads'] or fields['num_attention_heads'],
    head_size=fields['head_dim'] or max(fields['hidden_size'] // fields['num_attention_heads'], 1),
    activation=activation(fields, 'hidden_act'),
  )
  return text + write(SCALINGS[kind], Fields(given, FACTORS[kind], where))


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  (block,) = model.body.stack.blocks
  heads, kv_heads, head_dim = fields_of_attention(block.mixer)
  return 'LlamaForCausalLM', {
    'attention_bias': block.mixer.q.bias is not None,
    'attention_dropout': block.mixer.dropout_rate,
    'head_dim': head_dim,
    'hidden_act': activation_name(block.feed_forward.activation),
    'hidden_size': model.embedding.table.shape[-1],
    'intermediate_size': block.feed_forward.up.kernel.shape[-1],
    'mlp_bias': block.feed_forward.up.bias is not None,
    'num_attention_heads': heads,
    'num_hidden_layers': model.body.stack.num_layers,
    'num_key_value_heads': kv_heads,
    'rms_norm_eps': model.body.final_norm.epsilon,
    'rope_scaling': _rope_scaling(model.body.encoding.scaling),
    'rope_theta': model.body.encoding.base,
    'tie_word_embeddings': isinstance(model.head, TiedHead),
    'vocab_size': model.spec.vocab_size,
  }


def _rope_scaling(scaling: RoPEScaling | None) -> dict[str, Any] | None:
  if isinstance(scaling, LinearScaling):
    return {'rope_type': 'linear', 'factor': scaling.factor}
  if isinstance(scaling, Llama3Scaling):
    return {
      'rope_type': 'llama3',
      'factor': scaling.factor,
      'high_freq_factor': scaling.high_frequency,
      'low_freq_factor': scaling.low_frequency,
      'original_max_position_embeddings': scaling.max_length,
    }
  return None


LLAMA = Family(
  model_type='llama',
  architectures=('LlamaForCausalLM', 'LlamaModel'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    'attention_bias': Bool(False),
    'attention_dropout': rate(0.0),
    'head_dim': Size(None),
    'hidden_act': activation_field('silu'),
    'hidden_size': Size(4096),
    'intermediate_size': Size(11008),
    'mlp_bias': Bool(False),
    'num_attention_heads': Size(32),
    'num_hidden_layers': Layers(32),
    'num_key_value_heads': Size(None),
    'rms_norm_eps': positive(1e-6, 1.0),
    'rope_parameters': Object(None),
    'rope_scaling': Object(None),
    'rope_theta': positive(10000.0),
    'tie_word_embeddings': Bool(False),
    'vocab_size': Size(32000),
  },
  prefix='model.',
  ignored=(r'model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq',),
)
