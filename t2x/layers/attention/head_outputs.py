"""Parts between the heads of an attention layer and its output projection: gates, norms and differences of heads."""

import functools
from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers.attention.projections import Heads
from t2x.layers.dtypes import Dtypes
from t2x.layers.feed_forward.activations import sigmoid
from t2x.layers.initializers import normal, xavier_uniform, zeros
from t2x.layers.interfaces import Call, Norm
from t2x.layers.norms import LayerNorm, RMSNorm, norm_over
from t2x.layers.parameters import Initializer, Linear, param

__all__ = ['DifferentialHeads', 'GatedHeads', 'HeadOutputs', 'NormedHeads', 'ScalarGatedHeads']


@runtime_checkable
class HeadOutputs(Protocol):
  """Transforms the outputs of the heads. Built as `HeadOutputs(heads, rngs=rngs)` with the sizes
  `heads` of the layer."""

  @property
  def shape(self) -> tuple[int, int] | None:
    """Heads and features of the result, which the output projection reads; None: those of its input."""
    ...

  def __call__(
    self,
    y: Float[Array, 'batch length heads value_dim'],
    x: Float[Array, 'batch length d_model'],
    call: Call,
  ) -> Float[Array, 'batch length output_heads output_dim']:
    """Returns the input of the output projection.

    Args:
      y: outputs of the heads.
      x: input of the attention layer; its tokens are the queries.
      call: the call of the attention layer.
    """
    ...


class GatedHeads(nnx.Module):
  """Multiplies each feature of the heads by a gate: y * activation(x W) (Qiu et al. 2025,
  https://arxiv.org/abs/2505.06708, with a sigmoid).

  Args:
    heads: sizes of the attention layer.
    activation: elementwise function of the gates; `silu` in RetNet (https://arxiv.org/abs/2307.08621).
    bias_init: initialiser of a bias of the gates, such as `ones`, with which AlphaFold's gates start open. None: no
      bias.
    kernel_init: initialiser of W.
  """

  implements = (HeadOutputs,)
  shape: tuple[int, int] | None = None
  # Logical axes of the gates of a token.
  axes: ClassVar[tuple[str, ...]] = ('heads', 'head_dim')

  def __init__(
    self,
    heads: Heads,
    *,
    activation: Callable[[Array], Array] = sigmoid,
    bias_init: Initializer | None = None,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.activation = activation
    axes, shape = ('embed', *self.axes), (heads.num_heads, heads.value_dim)[: len(self.axes)]
    self.gate = Linear(
      (heads.d_model,),
      shape,
      axes,
      init=kernel_init,
      use_bias=bias_init is not None,
      bias_init=bias_init or zeros(),
      rngs=rngs,
    )

  def __call__(self, y, x, call):
    gate = self.activation(self.gate(x))
    return y * gate.reshape(*y.shape[:3], -1)


class ScalarGatedHeads(GatedHeads):
  """Multiplies each head by one gate: y_h * activation(x w_h), the head-wise gate of https://arxiv.org/abs/2505.06708.

  Arguments are those of `GatedHeads`; W is [d_model, num_heads].
  """

  axes = ('heads',)


class NormedHeads(nnx.Module):
  """Normalises the features of all heads together, as Sub-LN (https://arxiv.org/abs/2210.06423) before the output
  projection.

  Args:
    heads: sizes of the attention layer.
    norm: builds the norm over num_heads * head_dim features.
  """

  implements = (HeadOutputs,)
  shape: tuple[int, int] | None = None

  def __init__(
    self,
    heads: Heads,
    *,
    norm: Callable[..., Norm] = LayerNorm,
    rngs: nnx.Rngs,
  ):
    self.norm = norm_over('features', norm, heads.num_heads * heads.value_dim, rngs)

  def __call__(self, y, x, call):
    return self.norm(y.reshape(*y.shape[:2], -1)).reshape(y.shape)


class DifferentialHeads(nnx.Module):
  """Differences of pairs of heads (differential attention: Ye et al. 2024, https://arxiv.org/abs/2410.05258): head h is
  (1 - l) norm(y_h - w y_(h + n)) for n = num_heads / 2, with w = exp(q1 k1') - exp(q2 k2') + l and
  l = 0.8 - 0.6 exp(-0.3 layer), where the first layer of the body is 0.

  Both heads of a pair must have the same values: `MultiHeadAttention.key_values = @SharedValues`.

  Args:
    heads: sizes of the attention layer; its number of heads is even, and values have twice the features of queries. q1,
      k1, q2 and k2 have half the features of values.
    norm: builds the norm of each difference. None: `RMSNorm` without a scale, as in the paper.
    init: initialiser of q1, k1, q2 and k2.
  """

  implements = (HeadOutputs,)
  shape: tuple[int, int]

  def __init__(
    self,
    heads: Heads,
    *,
    norm: Callable[..., Norm] | None = None,
    init: Initializer = normal(0.1),
    rngs: nnx.Rngs,
  ):
    num_heads, value_dim = heads.num_heads, heads.value_dim
    if num_heads % 2 or value_dim % 2:
      raise UserError(
        f'DifferentialHeads subtracts pairs of heads: num_heads = {num_heads} and value_dim = {value_dim} must be even'
      )
    self.shape = num_heads // 2, value_dim
    plain = functools.partial(RMSNorm, use_scale=False)
    self.norm = norm_over('head_dim', norm or plain, value_dim, rngs)

    def vector() -> nnx.Param:
      axes = ('head_dim',)
      return param(init, (value_dim // 2,), axes, rngs, kind='vector', keep_float32=True)

    self.q1, self.k1, self.q2, self.k2 = vector(), vector(), vector(), vector()

  def __call__(self, y, x, call):
    initial = 0.8 - 0.6 * jnp.exp(-0.3 * jnp.asarray(call.layer, Dtypes.reductions))
    dots = [(q[...] * k[...]).sum() for q, k in ((self.q1, self.k1), (self.q2, self.k2))]
    weight = jnp.exp(dots[0]) - jnp.exp(dots[1]) + initial
    half = self.shape[0]
    difference = y[:, :, :half] - weight.astype(y.dtype) * y[:, :, half:]
    return self.norm(difference) * (1 - initial).astype(y.dtype)
