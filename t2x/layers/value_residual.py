"""Value residual learning (ResFormer: Zhou et al. 2024, https://arxiv.org/abs/2410.17897): attention in
every layer but the first mixes the values of the first layer into its own."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.layers.base import param
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes
from t2x.ranges import Finite, Size

# The values of the first layer, and whether there has been a first layer.
VALUES, IS_SET = 'first_values', 'has_first_values'


class ValueResidual(nnx.Module):
  """first V_1 + own V_n in layer n > 1, and V_1 in layer 1.

  V_1 are the values of the first layer of the stack whose attention has this part. Built as
  `ValueResidual(num_kv_heads, head_dim, rngs=rngs)`.

  Args:
    num_kv_heads: key-value heads.
    head_dim: features of a head.
    first: weight of the first layer's values.
    own: weight of the layer's own values.
  """

  def __init__(
    self,
    num_kv_heads: Size,
    head_dim: Size,
    *,
    first: Finite = 0.5,
    own: Finite = 0.5,
    rngs: nnx.Rngs,
  ):
    self.shape = num_kv_heads, head_dim
    self.first: Any = self.make_weight(first, rngs)
    self.own: Any = self.make_weight(own, rngs)

  def make_weight(self, value: float, rngs: nnx.Rngs) -> float | nnx.Param:
    """A weight that is `value` at first."""
    return value

  def weights(self) -> tuple[Any, Any]:
    """The weights of the first layer's values and of the layer's own."""
    return self.first, self.own

  def init_extras(self, x: Float[Array, 'batch length *rest']) -> dict[str, Array]:
    """What the first layer reads."""
    values = jnp.zeros((*x.shape[:2], *self.shape), x.dtype)
    return {VALUES: values, IS_SET: jnp.zeros((), bool)}

  def __call__(
    self, v: Float[Array, 'batch length kv_heads head_dim'], extras: Mapping[str, Array]
  ) -> tuple[Float[Array, 'batch length kv_heads head_dim'], dict[str, Array]]:
    """The values of this layer, and what the next layer reads.

    Args:
      v: the layer's own values.
      extras: what the layer before returned; empty outside of a stack.
    """
    extras = extras or self.init_extras(v)
    first = jnp.where(extras[IS_SET], extras[VALUES], v)
    first_weight, own_weight = self.weights()
    mixed = (first_weight * first + own_weight * v).astype(v.dtype)
    mixed = jnp.where(extras[IS_SET], mixed, v)
    first = constrain(first, 'batch', 'length', 'kv_heads', None)
    return mixed, {VALUES: first, IS_SET: jnp.ones((), bool)}


class LearnedValueResidual(ValueResidual):
  """As `ValueResidual`, with weights that each layer learns; `first` and `own` are their initial values."""

  def make_weight(self, value, rngs):
    """A parameter that stays in float32."""
    return param(nnx.initializers.constant(value), (), (), rngs, keep_float32=True)

  def weights(self) -> tuple[Float[Array, ''], Float[Array, '']]:
    """The learned weights in float32, to which the values are promoted."""
    return self.first[...].astype(Dtypes.reductions), self.own[...].astype(Dtypes.reductions)
