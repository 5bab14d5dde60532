"""Llama: `LlamaForCausalLM`, `LlamaModel`."""

from typing import Any

from t2x.base.external_files import Bool, Fields, Only
from t2x.interop.family import Family, Layers, activation, positive, rates, sizes, tied
from t2x.interop.rope import SCALINGS, Rope
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import ATTENTION_BIAS, DECODER, LAYERS, fill

ROPE = Rope('rope_theta')
# Gated feed-forward layers and RMS norms.
LLAMA_LAYERS = LAYERS.replace('LayerNorm', 'RMSNorm').replace('MLP', 'GatedMLP')
HEADS = """
MultiHeadAttention:
  num_kv_heads = {num_key_value_heads}
  head_dim = {head_dim}
GatedMLP.use_bias = {mlp_bias}
"""


def derive(fields: Fields) -> dict[str, Any]:
  """Returns the head sizes and the values of the rotary positions."""
  heads = fields['num_attention_heads']
  return ROPE.derive(fields) | {
    'head_dim': fields['head_dim'] or max(fields['hidden_size'] // heads, 1),
    'num_key_value_heads': fields['num_key_value_heads'] or heads,
  }


LLAMA = Family(
  model_type='llama',
  architectures=('LlamaForCausalLM', 'LlamaModel'),
  template=fill(
    DECODER.replace('LayerNorm', 'RMSNorm') + ROPE.template + LLAMA_LAYERS + ATTENTION_BIAS + HEADS,
    embedding_dropout=0.0,
    hidden_dropout=0.0,
    layer_norm_eps='rms_norm_eps',
  ),
  choices={'rope_type': SCALINGS},
  derive=derive,
  restore=ROPE.restore,
  declared={
    **ROPE.declared,
    **rates(attention_dropout=0.0),
    **sizes(head_dim=None, hidden_size=4096, intermediate_size=11008, num_attention_heads=32),
    **sizes(num_key_value_heads=None, vocab_size=32000),
    'attention_bias': Bool(False),
    'hidden_act': activation('silu'),
    'mlp_bias': Bool(False),
    'num_hidden_layers': Layers(32),
    'rms_norm_eps': positive(1e-6, 1.0),
    'rope_interleaved': Only(False),
    'tie_word_embeddings': tied(False),
  },
  # RoPE works for any position, so the maximum length has no effect.
  no_effect=('is_llama_config', 'max_position_embeddings', 'max_sequence_length'),
  rules=(
    Rule('model.embed_tokens.weight', ('embedding.table',)),
    *block(
      'model.layers.{}',
      norms=('input_layernorm', 'post_attention_layernorm'),
      mixer=tuple(f'self_attn.{name}_proj' for name in 'qkvo'),
      feed_forward=('mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj'),
    ),
    *norm('model.norm', 'body.final_norm'),
    *dense('lm_head', 'head.out'),
  ),
  prefix='model.',
  ignored=(r'model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq',),
)
