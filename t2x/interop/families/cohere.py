"""Command R of Cohere: attention and MLP in parallel after one norm without bias, and scaled logits."""

from t2x.base.external_files import Bool, Only
from t2x.interop.families.dense import (
  HEADS,
  LAYER_NORM_NAMES,
  language_model,
  llama_rules,
  qk_norms,
)
from t2x.interop.family import positive
from t2x.interop.rope import Rope
from t2x.interop.template import ATTENTION_BIAS, DECODER, PARALLEL_LAYERS

__all__ = ['COHERE']

SETTINGS = """
LayerNorm.use_bias = False
RoPE.interleaved = True
TiedHead.logit_scale = {logit_scale}
GatedMLP.use_bias = False
"""
# Command R+; each head has a scale of its own.
QK_NORM = """
MultiHeadAttention.qk_norm = @PerHead
"""
COHERE = language_model(
  'cohere',
  'Cohere',
  {
    'attention_bias': False,
    'attention_dropout': 0.0,
    'hidden_act': 'silu',
    'hidden_size': 8192,
    'intermediate_size': 22528,
    'layer_norm_eps': 1e-5,
    'num_attention_heads': 64,
    'num_hidden_layers': 40,
    'num_key_value_heads': None,
    'vocab_size': 256000,
  },
  template=DECODER.replace('{tie_word_embeddings}', '@TiedHead')
  + PARALLEL_LAYERS.replace('  feed_forward_norm = @LayerNorm\n', '').replace('MLP', 'GatedMLP')
  + ATTENTION_BIAS
  + HEADS
  + SETTINGS,
  names=LAYER_NORM_NAMES,
  rope=Rope(base_default=500000.0),
  choices={'use_qk_norm': {True: QK_NORM, False: ''}},
  declared={
    'logit_scale': positive(0.0625),
    'tie_word_embeddings': Only(True),
    'use_qk_norm': Bool(False),
  },
  no_effect=('model_max_length',),
  rules=(*llama_rules(), *qk_norms('.norms')),
  ignored=(r'lm_head\.weight',),
)
