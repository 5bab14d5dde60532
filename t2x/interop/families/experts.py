"""Decoder-only language models with mixtures of experts: Mixtral and Qwen3-MoE."""

from collections.abc import Iterator, Sequence
from typing import Any

from t2x.base.external_files import Bool, Fields, Float, Only
from t2x.interop.families.decoders import LLAMA, LLAMA_HEADS, LLAMA_LAYERS, LLAMA_ROPE
from t2x.interop.family import Family, Layers, activation, only, positive, rates, sizes, tied
from t2x.interop.layouts import LINEAR
from t2x.interop.rope import SCALINGS
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import ATTENTION_BIAS, DECODER, fill

# Nothing is dropped in transformers.
MIXTURE = """
MixtureOfExperts:
  num_experts = {num_local_experts}
  expert = @GatedMLP
  router = @TopK
  dispatch = @Dropless()
TopK:
  k = {num_experts_per_tok}
  normalise = {norm_topk_prob}
  balance = {balance}
GatedMLP.use_bias = False
"""
QK_NORM = """
MultiHeadAttention.qk_norm = @RMSNorm
"""
TEMPLATE = (
  DECODER.replace('LayerNorm', 'RMSNorm')
  + LLAMA_ROPE.template
  + LLAMA_LAYERS.replace('feed_forward = @GatedMLP', 'feed_forward = @MixtureOfExperts')
  + ATTENTION_BIAS
  + LLAMA_HEADS.replace('GatedMLP.use_bias = {mlp_bias}\n', '')
  + MIXTURE
)
FILLED = {'embedding_dropout': 0.0, 'hidden_dropout': 0.0, 'layer_norm_eps': 'rms_norm_eps'}


def _derive(fields: Fields) -> dict[str, Any]:
  """Returns the values of Llama's layers, and the coefficient of the balance loss: that of transformers is k for a
  uniform distribution, that of t2x is 1."""
  balance = fields['router_aux_loss_coef'] * fields['num_experts_per_tok']
  return {**LLAMA.derive(fields), 'balance': balance}


def _restore(values: dict[str, Any]) -> dict[str, Any]:
  coefficient = values['balance'] / values['num_experts_per_tok']
  return LLAMA_ROPE.restore(values) | {'router_aux_loss_coef': coefficient}


def _rules(mixture: str, router: str, projections: Sequence[str]) -> Iterator[Rule]:
  """The tensors of all parameters.

  Args:
    mixture: name of the mixture in a layer.
    router: name of its router.
    projections: names of gate, up and down projection of an expert.
  """
  yield Rule('model.embed_tokens.weight', ('embedding.table',))
  yield from block(
    'model.layers.{}',
    norms=('input_layernorm', 'post_attention_layernorm'),
    mixer=tuple(f'self_attn.{name}_proj' for name in 'qkvo'),
    feed_forward=(),
  )
  for name in 'qk':
    yield from norm(
      f'model.layers.{{}}.self_attn.{name}_norm', f'body.stack.{{}}.mixer.{name}_norm'
    )
  layer, module = f'model.layers.{{}}.{mixture}', 'body.stack.{}.feed_forward'
  yield Rule(f'{layer}.{router}.weight', (f'{module}.router.kernel',), LINEAR)
  for part, name in zip(('gate', 'up', 'down'), projections, strict=True):
    parameter = f'{module}.expert.{part}.kernel.{{}}'
    yield Rule(f'{layer}.experts.{{}}.{name}.weight', (parameter,), LINEAR)
  yield from norm('model.norm', 'body.final_norm')
  yield from dense('lm_head', 'head.out')


DECLARED = {
  **LLAMA_ROPE.declared,
  **rates(attention_dropout=0.0),
  'hidden_act': activation('silu'),
  'router_aux_loss_coef': Float(0.001, 0.0),
  'sliding_window': Only(None),
  'tie_word_embeddings': tied(False),
}
NO_EFFECT = ('max_position_embeddings', 'output_router_logits')

MIXTRAL = Family(
  model_type='mixtral',
  architectures=('MixtralForCausalLM', 'MixtralModel'),
  template=fill(TEMPLATE, **FILLED, attention_bias=False, norm_topk_prob=True),
  choices={'rope_type': SCALINGS},
  derive=_derive,
  restore=_restore,
  declared={
    **DECLARED,
    **sizes(head_dim=None, hidden_size=4096, intermediate_size=14336, num_attention_heads=32),
    **sizes(num_experts_per_tok=2, num_key_value_heads=8, num_local_experts=8, vocab_size=32000),
    **only(0.0, 'router_jitter_noise'),
    'num_hidden_layers': Layers(32),
    'rope_theta': positive(1e6),
    'rms_norm_eps': positive(1e-5, 1.0),
  },
  no_effect=NO_EFFECT,
  rules=tuple(_rules('block_sparse_moe', 'gate', ('w1', 'w3', 'w2'))),
  prefix='model.',
)

# All layers are sparse.
QWEN3_MOE = Family(
  model_type='qwen3_moe',
  architectures=('Qwen3MoeForCausalLM', 'Qwen3MoeModel'),
  template=fill(TEMPLATE + QK_NORM, **FILLED, intermediate_size='moe_intermediate_size'),
  choices={'rope_type': SCALINGS},
  derive=_derive,
  restore=_restore,
  declared={
    **DECLARED,
    **sizes(head_dim=None, hidden_size=2048, moe_intermediate_size=768, num_attention_heads=32),
    **sizes(num_experts_per_tok=8, num_key_value_heads=4, num_local_experts=128),
    **sizes(vocab_size=151936),
    **only([], 'mlp_only_layers'),
    **only(1, 'decoder_sparse_step'),
    **only(False, 'use_sliding_window'),
    'attention_bias': Bool(False),
    'norm_topk_prob': Bool(False),
    'num_hidden_layers': Layers(24),
    'rms_norm_eps': positive(1e-6, 1.0),
  },
  aliases={'num_experts': 'num_local_experts'},
  no_effect=(*NO_EFFECT, 'intermediate_size', 'max_window_layers'),
  rules=tuple(_rules('mlp', 'gate', ('gate_proj', 'up_proj', 'down_proj'))),
  prefix='model.',
)
