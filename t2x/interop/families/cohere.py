"""Command R of Cohere: attention and MLP in parallel after one norm without bias, and scaled logits."""

from typing import Any

from t2x.base.external_files import Bool, Fields, Only
from t2x.interop.family import Family, Layers, activation, positive, rates, sizes
from t2x.interop.rope import SCALINGS, Rope
from t2x.interop.rules import Rule, block, norm
from t2x.interop.template import ATTENTION_BIAS, DECODER, PARALLEL_LAYERS, fill

__all__ = ['COHERE']

ROPE = Rope('rope_theta')
LAYERS = PARALLEL_LAYERS.replace('  feed_forward_norm = @LayerNorm\n', '').replace(
  'MLP', 'GatedMLP'
)
SETTINGS = """
LayerNorm.use_bias = False
RoPE.interleaved = True
TiedHead.logit_scale = {logit_scale}
GatedMLP.use_bias = False
MultiHeadAttention.num_kv_heads = {num_key_value_heads}
"""
# Command R+; each head has a scale of its own.
QK_NORM = """
MultiHeadAttention.qk_norm = @PerHead
"""


def _derive(fields: Fields) -> dict[str, Any]:
  """Returns the number of key-value heads and the values of the rotary positions."""
  heads = fields['num_key_value_heads'] or fields['num_attention_heads']
  return ROPE.derive(fields) | {'num_key_value_heads': heads}


COHERE = Family(
  model_type='cohere',
  architectures=('CohereForCausalLM', 'CohereModel'),
  template=fill(
    DECODER.replace('{tie_word_embeddings}', '@TiedHead')
    + ROPE.template
    + LAYERS
    + ATTENTION_BIAS
    + SETTINGS,
    embedding_dropout=0.0,
  ),
  choices={'rope_type': SCALINGS, 'use_qk_norm': {True: QK_NORM, False: ''}},
  derive=_derive,
  restore=ROPE.restore,
  declared={
    **ROPE.declared,
    **rates(attention_dropout=0.0),
    **sizes(hidden_size=8192, intermediate_size=22528, num_attention_heads=64),
    **sizes(num_key_value_heads=None, vocab_size=256000),
    'attention_bias': Bool(False),
    'hidden_act': activation('silu'),
    'layer_norm_eps': positive(1e-5, 1.0),
    'logit_scale': positive(0.0625),
    'num_hidden_layers': Layers(40),
    'rope_theta': positive(500000.0),
    'tie_word_embeddings': Only(True),
    'use_qk_norm': Bool(False),
  },
  # RoPE works for any position, so the maximum length has no effect.
  no_effect=('max_position_embeddings', 'model_max_length'),
  rules=(
    Rule('model.embed_tokens.weight', ('embedding.table',)),
    *block(
      'model.layers.{}',
      norms=('input_layernorm', 'post_attention_layernorm'),
      mixer=tuple(f'self_attn.{name}_proj' for name in 'qkvo'),
      feed_forward=('mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj'),
    ),
    *(
      Rule(
        f'model.layers.{{}}.self_attn.{name}.weight', (f'body.stack.{{}}.mixer.{name}.norms.scale',)
      )
      for name in ('q_norm', 'k_norm')
    ),
    *norm('model.norm', 'body.final_norm'),
  ),
  prefix='model.',
  ignored=(r'lm_head\.weight', r'model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq'),
)
