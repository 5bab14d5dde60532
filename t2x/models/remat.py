"""Rematerialisation policies by name: which activations a layer saves for its backward pass.

`jax.checkpoint` (Chen et al. 2016, https://arxiv.org/abs/1604.06174) recomputes all other activations.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive

from t2x.base.errors import UserError
from t2x.layers import Kernel
from t2x.layers.attention.kernels import ATTENTION_OUTPUT


def save_attention(primitive: Primitive, *avals: object, **params: Any) -> bool:
  """Policy that saves what attention kernels need to skip their forward pass in the backward pass.

  These are the named outputs and row statistics of t2x's kernels, and all outputs of fused kernels of other
  libraries (cuDNN, Pallas), which have no names.
  """
  if primitive.name in ('dot_product_attention_fwd_wrapper', 'pallas_call'):
    return True
  if primitive.name == 'custom_vjp_call':  # The forward pass of jax's `mha` calls itself.
    return _calls_pallas(params['call_jaxpr'])
  return jax.checkpoint_policies.save_only_these_names(ATTENTION_OUTPUT)(
    primitive, *avals, **params
  )


def _calls_pallas(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
  for equation in jaxpr.eqns:
    inner = (v for v in equation.params.values() if isinstance(v, Jaxpr | ClosedJaxpr))
    if equation.primitive.name == 'pallas_call' or any(map(_calls_pallas, inner)):
      return True
  return False


# Value of `Stack.remat` -> policy.
POLICIES: dict[str, Callable[..., bool]] = {
  'full': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.dots_saveable,
  'dots_no_batch': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'attention': save_attention,
  'dots_no_batch+attention': jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable, save_attention
  ),
}


def check_remat(name: str, blocks: Iterable[nnx.Module]) -> None:
  """Checks that a policy exists and has an effect in a stack of `blocks`.

  Raises:
    UserError: there is no such policy, or it saves attention outputs and no block has an attention kernel.
  """
  if name not in POLICIES:
    raise UserError(f"Stack.remat = '{name}': must be {', '.join(POLICIES)} or None")
  if 'attention' in name and not any(map(_has_kernel, blocks)):
    others = ', '.join(other for other in POLICIES if 'attention' not in other)
    raise UserError(
      f"Stack.remat = '{name}' saves the outputs of attention kernels, but no block of this stack has an "
      f'attention kernel: use {others} or None'
    )


def _has_kernel(block: nnx.Module) -> bool:
  return any(
    isinstance(value, Kernel)
    for _, module in nnx.iter_modules(block)
    for value in vars(module).values()
  )
