"""Mamba-2 (https://arxiv.org/abs/2405.21060): blocks of one recurrence each, without feed-forward layers."""

import math
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Bool, Fields, Only
from t2x.interop.family import Family, Layers, positive, sizes, tied
from t2x.interop.layouts import DEPTHWISE, LINEAR, VECTOR
from t2x.interop.rules import Rule, dense, norm
from t2x.interop.template import DECODER, fill

__all__ = ['MAMBA2']

TEMPLATE = (
  fill(DECODER.replace('LayerNorm', 'RMSNorm'), embedding_dropout=0.0)
  + """
Stack:
  num_layers = {num_hidden_layers}
  blocks = [@SublayerBlock]
SublayerBlock:
  sublayers = {'mixer': @Mamba2}
  wiring = @PreNorm
PreNorm.norm = @RMSNorm
RMSNorm.epsilon = {layer_norm_epsilon}
Mamba2:
  num_heads = {num_heads}
  head_dim = {head_dim}
  state_dim = {state_size}
  num_groups = {n_groups}
  kernel_size = {conv_kernel}
  use_bias = {use_bias}
  conv_bias = {use_conv_bias}
  epsilon = {layer_norm_epsilon}
  chunk = {chunk_size}
"""
)


def _derive(fields: Fields) -> dict[str, Any]:
  """Checks the width of the heads and the groups; adds no values."""
  width, heads = fields['expand'] * fields['hidden_size'], fields['num_heads']
  if width != heads * fields['head_dim']:
    raise UserError(
      f'{fields.where}: num_heads = {heads} times head_dim = {fields["head_dim"]} must be expand = '
      f'{fields["expand"]} times hidden_size = {fields["hidden_size"]}'
    )
  if heads % fields['n_groups']:
    raise fields.refused('n_groups', fields['n_groups'], f'a divisor of num_heads = {heads}')
  return {}


def _restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the ratio of the width of the heads to that of the model."""
  return values | {'expand': values['num_heads'] * values['head_dim'] // values['hidden_size']}


LAYER, MIXER = 'backbone.layers.{}', 'body.stack.{}.mixer'
MAMBA2 = Family(
  model_type='mamba2',
  architectures=('Mamba2ForCausalLM', 'Mamba2Model'),
  template=TEMPLATE,
  derive=_derive,
  restore=_restore,
  declared={
    **sizes(chunk_size=256, conv_kernel=4, expand=2, head_dim=64, hidden_size=4096, n_groups=8),
    **sizes(num_heads=128, state_size=128, vocab_size=32768),
    'hidden_act': Only('silu'),
    'layer_norm_epsilon': positive(1e-5, 1.0),
    'num_hidden_layers': Layers(64),
    'rms_norm': Only(True),
    'tie_word_embeddings': tied(False),
    # JSON has no infinity.
    'time_step_limit': Only([0.0, {'__float__': 'Infinity'}], others=([0.0, math.inf],)),
    'use_bias': Bool(False),
    'use_conv_bias': Bool(True),
  },
  # Initial values; residuals in float32, as all computation here.
  no_effect=(
    *('residual_in_fp32', 'rescale_prenorm_residual', 'time_step_floor', 'time_step_max'),
    *('time_step_init_scheme', 'time_step_min', 'time_step_rank', 'time_step_scale'),
    'norm_before_gate',
  ),
  rules=(
    Rule('backbone.embeddings.weight', ('embedding.table',)),
    *norm(f'{LAYER}.norm', 'body.stack.{}.mixer_wiring.norm'),
    Rule(f'{LAYER}.mixer.A_log', (f'{MIXER}.decay',)),
    Rule(f'{LAYER}.mixer.D', (f'{MIXER}.skip',)),
    Rule(f'{LAYER}.mixer.dt_bias', (f'{MIXER}.step_bias',)),
    Rule(f'{LAYER}.mixer.norm.weight', (f'{MIXER}.scale',), VECTOR),
    Rule(
      f'{LAYER}.mixer.conv1d.weight', tuple(f'{MIXER}.{name}_taps' for name in 'vkq'), DEPTHWISE
    ),
    Rule(f'{LAYER}.mixer.conv1d.bias', tuple(f'{MIXER}.{name}_bias' for name in 'vkq'), VECTOR),
    *dense(f'{LAYER}.mixer.in_proj', *(f'{MIXER}.{n}' for n in ('gate', 'v', 'k', 'q', 'step'))),
    *dense(f'{LAYER}.mixer.out_proj', f'{MIXER}.out', layout=LINEAR.from_heads),
    *norm('backbone.norm_f', 'body.final_norm'),
    *dense('lm_head', 'head.out'),
  ),
  prefix='backbone.',
)
