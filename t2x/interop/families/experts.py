"""Decoder-only language models with mixtures of experts: Mixtral and Qwen3-MoE."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t2x.base.external_files import Bool, Field, Fields, Float, Only
from t2x.interop.families.dense import (
  GATED,
  LLAMA_TEMPLATE,
  QK_NORM,
  SIZE_32,
  language_model,
  llama_rules,
  qk_norms,
)
from t2x.interop.family import Family, only, sizes
from t2x.interop.layouts import LINEAR
from t2x.interop.rope import Rope
from t2x.interop.rules import Rule

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
TEMPLATE = LLAMA_TEMPLATE.replace(
  'feed_forward = @GatedMLP', 'feed_forward = @MixtureOfExperts'
).replace(GATED, MIXTURE)


def _derive(fields: Fields) -> dict[str, Any]:
  """Returns the coefficient of the balance loss: that of transformers is k for a uniform distribution, here it is 1."""
  return {'balance': fields['router_aux_loss_coef'] * fields['num_experts_per_tok']}


def _restore(values: dict[str, Any]) -> dict[str, Any]:
  return {**values, 'router_aux_loss_coef': values['balance'] / values['num_experts_per_tok']}


def _rules(mixture: str, projections: Sequence[str]) -> Iterator[Rule]:
  """The tensors of all parameters.

  Args:
    mixture: name of the mixture in a layer.
    projections: names of gate, up and down projection of an expert.
  """
  yield from llama_rules(feed_forward=())
  layer, module = f'model.layers.{{}}.{mixture}', 'body.stack.{}.feed_forward'
  yield Rule(f'{layer}.gate.weight', (f'{module}.router.kernel',), LINEAR)
  for part, name in zip(('gate', 'up', 'down'), projections, strict=True):
    parameter = f'{module}.expert.{part}.kernel.{{}}'
    yield Rule(f'{layer}.experts.{{}}.{name}.weight', (parameter,), LINEAR)


# Fields of both families.
DECLARED: Mapping[str, Field] = {
  'router_aux_loss_coef': Float(0.001, 0.0),
  'sliding_window': Only(None),
}


def _mixture(
  model_type: str,
  name: str,
  defaults: Mapping[str, Any],
  *,
  declared: Mapping[str, Field],
  no_effect: Sequence[str] = (),
  **more: Any,
) -> Family:
  """Returns the family with the defaults that differ from those of 32 layers."""
  return language_model(
    model_type,
    name,
    {**SIZE_32, 'head_dim': None, **defaults},
    declared={**DECLARED, **declared},
    derive=_derive,
    restore=_restore,
    no_effect=('output_router_logits', *no_effect),
    **more,
  )


MIXTRAL = _mixture(
  'mixtral',
  'Mixtral',
  {'intermediate_size': 14336, 'num_key_value_heads': 8, 'rms_norm_eps': 1e-5, 'vocab_size': 32000},
  template=TEMPLATE.replace('{norm_topk_prob}', 'True'),
  declared={
    **sizes(num_experts_per_tok=2, num_local_experts=8),
    **only(0.0, 'router_jitter_noise'),
  },
  rope=Rope(base_default=1e6),
  rules=tuple(_rules('block_sparse_moe', ('w1', 'w3', 'w2'))),
)

# All layers are sparse.
QWEN3_MOE = _mixture(
  'qwen3_moe',
  'Qwen3Moe',
  {
    'attention_bias': False,
    'hidden_size': 2048,
    'num_hidden_layers': 24,
    'num_key_value_heads': 4,
    'vocab_size': 151936,
  },
  template=TEMPLATE.replace('{intermediate_size}', '{moe_intermediate_size}') + QK_NORM,
  declared={
    **sizes(moe_intermediate_size=768, num_experts_per_tok=8, num_local_experts=128),
    **only([], 'mlp_only_layers'),
    **only(1, 'decoder_sparse_step'),
    **only(False, 'use_sliding_window'),
    'norm_topk_prob': Bool(False),
  },
  aliases={'num_experts': 'num_local_experts'},
  no_effect=('intermediate_size', 'max_window_layers'),
  rules=(*_rules('mlp', ('gate_proj', 'up_proj', 'down_proj')), *qk_norms()),
)
