"""The experts of DeepSeek-V3: two shared ones beside routed ones, as a part of t2x and as arrays of transformers."""

import functools

import numpy as np

from t2x.layers import (
  Dropless,
  GatedMLP,
  LoadBias,
  MixtureOfExperts,
  Parallel,
  TopK,
  WithinGroups,
  sigmoid,
)

EXPERTS, CHOSEN, GROUPS, BEST_GROUPS, EXPERT_HIDDEN, FACTOR = 8, 3, 4, 2, 12, 2.5
# Settings of DeepseekV3Config.
SETTINGS = {
  'moe_intermediate_size': EXPERT_HIDDEN,
  'n_routed_experts': EXPERTS,
  'n_shared_experts': 2,
  'num_experts_per_tok': CHOSEN,
  'n_group': GROUPS,
  'topk_group': BEST_GROUPS,
  'routed_scaling_factor': FACTOR,
  'experts_implementation': 'eager',
}
partial = functools.partial


def experts():
  """Two shared experts, which are one layer of twice the width, and routed ones, chosen with a bias within groups."""
  router = partial(
    TopK,
    k=CHOSEN,
    scoring=sigmoid,
    selection=WithinGroups(num_groups=GROUPS, num_chosen=BEST_GROUPS),
    factor=FACTOR,
    bias=LoadBias,
  )
  routed = partial(
    MixtureOfExperts,
    num_experts=EXPERTS,
    expert=partial(GatedMLP, hidden_dim=EXPERT_HIDDEN),
    router=router,
    dispatch=Dropless(),
  )
  shared = partial(GatedMLP, hidden_dim=2 * EXPERT_HIDDEN)
  return partial(Parallel, parts={'shared': shared, 'routed': routed})


def in_t2x(theirs, read):
  """Returns `read(parameter)` of each parameter of DeepseekV3MoE, in the names and shapes of `experts()`."""
  gate, up = np.split(read(theirs.experts.gate_up_proj).swapaxes(1, 2), 2, axis=-1)
  shared = {
    f'shared.{name}.kernel': read(getattr(theirs.shared_experts, f'{name}_proj').weight).T
    for name in ('gate', 'up', 'down')
  }
  return shared | {
    'routed.expert.gate.kernel': gate,
    'routed.expert.up.kernel': up,
    'routed.expert.down.kernel': read(theirs.experts.down_proj).swapaxes(1, 2),
    'routed.router.kernel': read(theirs.gate.weight).T,
    'routed.router.bias.bias': read(theirs.gate.e_score_correction_bias),
  }
