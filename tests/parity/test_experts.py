"""The mixture of experts of DeepSeek-V3, with shared experts, against transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  Call,
  Dropless,
  GatedMLP,
  LoadBias,
  MixtureOfExperts,
  Parallel,
  Tokens,
  TopK,
  WithinGroups,
  sigmoid,
)

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'parity' is not installed")

part = functools.partial
WIDTH, HIDDEN, EXPERTS = 16, 12, 8
TOLERANCE = {'atol': 1e-5, 'rtol': 1e-5}


def theirs(perturbed):
  from transformers.models.deepseek_v3 import modeling_deepseek_v3

  config = transformers.DeepseekV3Config(
    hidden_size=WIDTH,
    moe_intermediate_size=HIDDEN,
    n_routed_experts=EXPERTS,
    n_shared_experts=2,
    num_experts_per_tok=3,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=2.5,
    num_attention_heads=2,
    num_key_value_heads=2,
    experts_implementation='eager',
  )
  block = modeling_deepseek_v3.DeepseekV3MoE(config)
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in block.parameters():
      parameter.copy_(0.3 * torch.randn(parameter.shape))
    block.gate.e_score_correction_bias.copy_(0.1 * torch.randn(EXPERTS))
  return perturbed(block, 0.1)


def ours():
  router = part(
    TopK,
    k=3,
    scoring=sigmoid,
    selection=WithinGroups(num_groups=4, num_chosen=2),
    factor=2.5,
    bias=LoadBias,
  )
  routed = part(
    MixtureOfExperts,
    num_experts=EXPERTS,
    expert=part(GatedMLP, hidden_dim=HIDDEN),
    router=router,
    dispatch=Dropless(),
  )
  shared = part(GatedMLP, hidden_dim=2 * HIDDEN)
  return Parallel(WIDTH, parts={'shared': shared, 'routed': routed}, rngs=nnx.Rngs(0))


def in_t2x(name, arrays):
  """The arrays of transformers by the names of t2x."""
  up = arrays['experts.gate_up_proj'].swapaxes(1, 2)
  of_experts = {
    'gate': up[..., :HIDDEN],
    'up': up[..., HIDDEN:],
    'down': arrays['experts.down_proj'].swapaxes(1, 2),
  }
  named = {f'routed.expert.{key}.kernel': value for key, value in of_experts.items()}
  named |= {
    f'shared.{key}.kernel': arrays[f'shared_experts.{key}_proj.weight'].T for key in of_experts
  }
  return (named | {'routed.router.kernel': arrays['gate.weight'].T})[name]


def test_the_mixture_of_deepseek_v3_equals_that_of_transformers(perturbed, compared):
  """Outputs, the gradients of all parameters and of the input; the bias changes the choice of experts only."""
  block, own = theirs(perturbed), ours()
  arrays = {name: value.detach().numpy() for name, value in block.named_parameters()}
  names = [
    f'{module}.{key}.kernel'
    for module in ('routed.expert', 'shared')
    for key in ('gate', 'up', 'down')
  ]
  names.append('routed.router.kernel')

  def of(module, name):
    for key in name.split('.'):
      module = getattr(module, key)
    return module

  for name in names:
    of(own, name)[...] = jnp.asarray(in_t2x(name, arrays))
  own.routed.router.bias.bias[...] = jnp.asarray(block.gate.e_score_correction_bias.numpy())
  x = np.random.default_rng(0).normal(size=(2, 10, WIDTH)).astype(np.float32)
  cotangent = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)
  leaf = torch.tensor(x, requires_grad=True)
  y = block(leaf)
  (y * torch.tensor(cotangent)).sum().backward()

  def loss(own, x):
    result = own(x, Call(Tokens.row(10))).x
    return (result * cotangent).sum(), result

  (gradients, dx), result = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(own, x)
  system = "DeepSeek-V3's experts", 'transformers DeepseekV3MoE'
  compared(*system, result, y.detach().numpy(), **TOLERANCE)
  slopes = {name: value.grad.numpy() for name, value in block.named_parameters()}
  pairs = [(dx, leaf.grad.numpy())]
  pairs += [(of(gradients, name)[...], in_t2x(name, slopes)) for name in names]
  for got, wanted in pairs:
    scale = np.abs(wanted).max()
    compared(*system, got / scale, wanted / scale, of='gradients', **TOLERANCE)
  # Not its gradient: the load.
  assert gradients.routed.router.bias.bias[...].sum() == 3 * 20
