"""LayerNorm (https://arxiv.org/abs/1607.06450) and RMSNorm (https://arxiv.org/abs/1910.07467).

Both normalise over the last dimension, compute in float32 with float32 scales, and return the dtype of the
input."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Epsilon
from t2x.layers.building import build_context, building
from t2x.layers.dtypes import Dtypes, with_rank
from t2x.layers.initializers import ones, zeros
from t2x.layers.interfaces import Norm
from t2x.layers.parameters import Initializer, param

__all__ = ['LayerNorm', 'RMSNorm']


def _vector(init: Initializer, size: int, rngs: nnx.Rngs) -> nnx.Param:
  axes = (build_context().axis,)
  return param(init, (size,), axes, rngs, kind='vector', keep_float32=True)


class LayerNorm(nnx.Module):
  """Layer normalisation: (x - mean) / sqrt(variance + epsilon) * scale + bias.

  Args:
    d_model: size of the last dimension.
    epsilon: added to the variance.
    use_bias: whether to add a bias; PaLM and Cohere do not.
    use_scale: whether to multiply by a learned scale; OLMo (https://arxiv.org/abs/2402.00838) has neither.
  """

  implements = (Norm,)

  def __init__(
    self,
    d_model: int,
    *,
    epsilon: Epsilon = 1e-6,
    use_bias: bool = True,
    use_scale: bool = True,
    rngs: nnx.Rngs,
  ):
    self.epsilon = epsilon
    self.scale = _vector(ones(), d_model, rngs) if use_scale else None
    self.bias = _vector(zeros(), d_model, rngs) if use_bias else None

  def __call__(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest d_model']:
    y = x.astype(Dtypes.reductions)
    y = y - y.mean(axis=-1, keepdims=True)
    variance = jnp.square(y).mean(axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(variance + self.epsilon)
    if self.scale is not None:
      y = y * with_rank(self.scale[...].astype(Dtypes.reductions), y.ndim)
    if self.bias is not None:
      y = y + with_rank(self.bias[...].astype(Dtypes.reductions), y.ndim)
    return y.astype(x.dtype)


def norm_over(axis: str, build: Callable[..., Norm], size: int, rngs: nnx.Rngs) -> Norm:
  """Builds a norm of `size` features whose parameters have the logical axis `axis`, if the norm reads
  `build_context().axis` as the norms of this file do."""
  with building(axis=axis):
    return build(size, rngs=rngs)


class RMSNorm(nnx.Module):
  """Root mean square normalisation: x / sqrt(mean(x^2) + epsilon) * scale (T5, Llama).

  Args:
    d_model: size of the last dimension.
    epsilon: added to the mean square.
    use_scale: whether to multiply by a learned scale.
    unit_offset: whether the factor is 1 + scale, with an initial scale of 0, so that weight decay moves it to 1
      (Gemma, https://arxiv.org/abs/2403.08295).
  """

  implements = (Norm,)

  def __init__(
    self,
    d_model: int,
    *,
    epsilon: Epsilon = 1e-6,
    use_scale: bool = True,
    unit_offset: bool = False,
    rngs: nnx.Rngs,
  ):
    if unit_offset and not use_scale:
      raise UserError('RMSNorm.unit_offset has no effect without RMSNorm.use_scale: leave it out')
    self.epsilon, self.unit_offset = epsilon, unit_offset
    init = zeros() if unit_offset else ones()
    self.scale = _vector(init, d_model, rngs) if use_scale else None

  def __call__(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest d_model']:
    y = x.astype(Dtypes.reductions)
    square = jnp.square(y).mean(axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(square + self.epsilon)
    if self.scale is not None:
      scale = self.scale[...].astype(Dtypes.reductions)
      y = y * with_rank(1.0 + scale if self.unit_offset else scale, y.ndim)
    return y.astype(x.dtype)
