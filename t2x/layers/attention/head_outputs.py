"""Parts between the heads of an attention layer and its output projection: gates and norms."""

from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

import jax
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Size
from t2x.base.widened import widened
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Norm
from t2x.layers.norms import LayerNorm, norm_over
from t2x.layers.parameters import Initializer, Linear

__all__ = ['GatedHeads', 'HeadOutputs', 'NormedHeads', 'ScalarGatedHeads']


@runtime_checkable
class HeadOutputs(Protocol):
  """Transforms the outputs of the heads. Built as `HeadOutputs(d_model, num_heads, head_dim, rngs=rngs)`."""

  @widened('call')
  def __call__(
    self,
    y: Float[Array, 'batch length heads head_dim'],
    x: Float[Array, 'batch length d_model'],
    call: Call,
  ) -> Float[Array, 'batch length heads head_dim']:
    """Returns the input of the output projection.

    Args:
      y: outputs of the heads.
      x: input of the attention layer; its tokens are the queries.
      call: the call of the attention layer.
    """
    ...


class GatedHeads(nnx.Module):
  """Multiplies each feature of the heads by a gate: y * sigmoid(x W) (Qiu et al. 2025,
  https://arxiv.org/abs/2505.06708).

  Args:
    d_model: width of the attention layer's input.
    num_heads: number of query heads.
    head_dim: features per head.
    kernel_init: initialiser of W.
  """

  implements = (HeadOutputs,)
  # Logical axes of the gates of a token.
  axes: ClassVar[tuple[str, ...]] = ('heads', 'head_dim')

  def __init__(
    self,
    d_model: int,
    num_heads: Size,
    head_dim: Size,
    *,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    axes, shape = ('embed', *self.axes), (num_heads, head_dim)[: len(self.axes)]
    self.gate = Linear((d_model,), shape, axes, init=kernel_init, use_bias=False, rngs=rngs)

  def __call__(self, y, x, call):
    gate = jax.nn.sigmoid(self.gate(x))
    return y * gate.reshape(*y.shape[:3], -1)


class ScalarGatedHeads(GatedHeads):
  """Multiplies each head by one gate: y_h * sigmoid(x w_h), the head-wise gate of https://arxiv.org/abs/2505.06708.

  Arguments are those of `GatedHeads`; W is [d_model, num_heads].
  """

  axes = ('heads',)


class NormedHeads(nnx.Module):
  """Normalises the features of all heads together, as Sub-LN (https://arxiv.org/abs/2210.06423) before the output
  projection.

  Args:
    num_heads: number of query heads.
    head_dim: features per head.
    norm: builds the norm over num_heads * head_dim features.
  """

  implements = (HeadOutputs,)

  def __init__(
    self,
    d_model: int,
    num_heads: Size,
    head_dim: Size,
    *,
    norm: Callable[..., Norm] = LayerNorm,
    rngs: nnx.Rngs,
  ):
    self.norm = norm_over('features', norm, num_heads * head_dim, rngs)

  def __call__(self, y, x, call):
    return self.norm(y.reshape(*y.shape[:2], -1)).reshape(y.shape)
