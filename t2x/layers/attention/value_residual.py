"""Value residual learning (ResFormer: Zhou et al. 2024, https://arxiv.org/abs/2410.17897): attention in
every layer except the first mixes its values with those of the first layer."""

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Finite
from t2x.layers.attention.projections import Heads
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes
from t2x.layers.interfaces import Call
from t2x.layers.parameters import param

__all__ = ['LearnedValueResidual', 'ValueResidual', 'Values']

# Names of the extras: values of the first layer, and whether a first layer has set them.
VALUES, IS_SET = 'first_values', 'has_first_values'


@runtime_checkable
class Values(Protocol):
  """Transforms the values of an attention layer. Built as `Values(heads, rngs=rngs)`."""

  def init_extras(self, x: Float[Array, 'batch length *rest']) -> dict[str, Array]:
    """Returns the extras of the first layer; see `ExtrasSublayer.init_extras`."""
    ...

  def __call__(
    self, v: Float[Array, 'batch length kv_heads head_dim'], call: Call
  ) -> tuple[Float[Array, 'batch length kv_heads head_dim'], dict[str, Array]]:
    """Returns the values of this layer, and the extras of the next layer.

    Args:
      v: projected values.
      call: the call of the attention layer; its extras are empty outside of a stack.
    """
    ...


class ValueResidual(nnx.Module):
  """Replaces the values of layer n > 1 by first V_1 + own V_n; layer 1 uses V_1.

  V_1 are the values of the first layer of the stack whose attention has this part. Built as
  `ValueResidual(heads, rngs=rngs)`.

  Args:
    heads: sizes of the attention layer.
    first: weight of the first layer's values.
    own: weight of the layer's own values.
  """

  implements = (Values,)

  def __init__(
    self,
    heads: Heads,
    *,
    first: Finite = 0.5,
    own: Finite = 0.5,
    rngs: nnx.Rngs,
  ):
    self.shape = heads.values
    self.first: Any = self.make_weight(first, rngs)
    self.own: Any = self.make_weight(own, rngs)

  def make_weight(self, value: float, rngs: nnx.Rngs) -> float | nnx.Param:
    """Returns a weight with the initial value `value`."""
    return value

  def weights(self) -> tuple[Any, Any]:
    """Returns the weights of the first layer's values and of the layer's own values."""
    return self.first, self.own

  def init_extras(self, x: Float[Array, 'batch length *rest']) -> dict[str, Array]:
    """Returns the extras of the first layer."""
    values = jnp.zeros((*x.shape[:2], *self.shape), x.dtype)
    return {VALUES: values, IS_SET: jnp.zeros((), bool)}

  def __call__(
    self, v: Float[Array, 'batch length kv_heads head_dim'], call: Call
  ) -> tuple[Float[Array, 'batch length kv_heads head_dim'], dict[str, Array]]:
    """Returns the mixed values of this layer and the extras of the next layer."""
    extras = call.extras or self.init_extras(v)
    first = jnp.where(extras[IS_SET], extras[VALUES], v)
    first_weight, own_weight = self.weights()
    mixed = (first_weight * first + own_weight * v).astype(v.dtype)
    mixed = jnp.where(extras[IS_SET], mixed, v)
    first = constrain(first, 'batch', 'length', 'kv_heads', None)
    return mixed, {VALUES: first, IS_SET: jnp.ones((), bool)}


class LearnedValueResidual(ValueResidual):
  """`ValueResidual` with learned weights in each layer; `first` and `own` are their initial values."""

  def make_weight(self, value, rngs):
    init = nnx.initializers.constant(value)
    return param(init, (), (), rngs, kind='scalar', keep_float32=True)

  def weights(self) -> tuple[Float[Array, ''], Float[Array, '']]:
    """Returns the learned weights in float32; values are promoted to it."""
    return self.first[...].astype(Dtypes.reductions), self.own[...].astype(Dtypes.reductions)
