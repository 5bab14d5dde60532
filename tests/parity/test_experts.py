"""The mixture of experts of DeepSeek-V3, with shared experts, against transformers."""

import deepseek_v3
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import Call, Tokens
from t2x.layers.arrays import named_leaves

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH = 16
TOLERANCE = {'atol': 1e-5, 'rtol': 1e-5}


def theirs(perturbed):
  from transformers.models.deepseek_v3 import modeling_deepseek_v3

  config = transformers.DeepseekV3Config(
    hidden_size=WIDTH, num_attention_heads=2, num_key_value_heads=2, **deepseek_v3.SETTINGS
  )
  block = modeling_deepseek_v3.DeepseekV3MoE(config)
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in block.parameters():
      parameter.copy_(0.3 * torch.randn(parameter.shape))
    block.gate.e_score_correction_bias.copy_(0.1 * torch.randn(deepseek_v3.EXPERTS))
  return perturbed(block, 0.1)


def test_the_mixture_of_deepseek_v3_equals_that_of_transformers(perturbed, compared):
  """Outputs, the gradients of all parameters and of the input; the bias changes the choice of experts only."""
  block = theirs(perturbed)
  own = deepseek_v3.experts()(WIDTH, rngs=nnx.Rngs(0))
  arrays = deepseek_v3.in_t2x(block, lambda parameter: parameter.detach().numpy())
  names = [name for name, _ in named_leaves(own)]
  assert set(names) == arrays.keys()
  own = jax.tree.unflatten(jax.tree.structure(own), [jnp.asarray(arrays[n]) for n in names])
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
  bias = block.gate.e_score_correction_bias
  slopes = deepseek_v3.in_t2x(block, lambda p: p.numpy() if p is bias else p.grad.numpy())
  pairs = [(dx, leaf.grad.numpy())]
  # That of the bias is not its gradient, but the load.
  load = 'routed.router.bias.bias'
  pairs += [(leaf, slopes[name]) for name, leaf in named_leaves(gradients) if name != load]
  for got, wanted in pairs:
    scale = np.abs(wanted).max()
    compared(*system, got / scale, wanted / scale, of='gradients', **TOLERANCE)
  assert gradients.routed.router.bias.bias[...].sum() == 3 * 20
