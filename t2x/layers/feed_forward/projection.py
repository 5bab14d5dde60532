"""Sublayers of one operation on each token: a linear map, an activation, and a factor of gradients."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Positive
from t2x.layers.caches import Cache
from t2x.layers.feed_forward.mlp import FeedForward
from t2x.layers.initializers import lecun_normal
from t2x.layers.interfaces import Call, Result
from t2x.layers.parameters import Initializer, Linear

__all__ = ['Activation', 'Projection', 'ScaledGradient']


class Projection(FeedForward):
  """Linear map, such as the first and the last layer of a convolutional body with the wiring `Plain`
  (Gehring et al. 2017, https://arxiv.org/abs/1705.03122, section 3.2).

  Args:
    d_model: width of the input and output.
    linear: builds the map, such as `WeightNormLinear`. None: `Linear`.
    use_bias: whether it has a bias.
    kernel_init: initialiser of the kernel.
  """

  def __init__(
    self,
    d_model: int,
    *,
    linear: Callable[..., Linear] | None = None,
    use_bias: bool = True,
    kernel_init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    settings: dict[str, Any] = {
      'init': kernel_init,
      'use_bias': use_bias,
      'kind': 'matrix',
      'rngs': rngs,
    }
    self.out = (linear or Linear)((d_model,), (d_model,), ('mlp', 'embed'), **settings)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    return Result(self.out(x))


class Activation(FeedForward):
  """Elementwise function of the input.

  Args:
    d_model: width of the input.
    activation: the function.
  """

  def __init__(self, d_model: int, *, activation: Callable[[Array], Array], rngs: nnx.Rngs):
    self.activation = activation

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    return Result(self.activation(x))


class ScaledGradient(FeedForward):
  """Returns its input, with a gradient that is multiplied by a factor.

  With the wiring `Plain` after an encoder of n decoder layers that attend to it, ConvS2S uses 1 / (2 n)
  (Gehring et al. 2017, https://arxiv.org/abs/1705.03122, section 3.4, and its code in fairseq).

  Args:
    d_model: width of the input.
    factor: factor of the gradient.
  """

  def __init__(self, d_model: int, *, factor: Positive, rngs: nnx.Rngs):
    self.factor = factor

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    fixed = jax.lax.stop_gradient(x)
    return Result(fixed + self.factor * (x - fixed))
