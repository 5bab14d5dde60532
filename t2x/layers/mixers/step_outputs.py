"""Outputs of a step of a recurrent decoder, computed from its state, its token and its context."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Size
from t2x.layers.parameters import Initializer, Linear

__all__ = ['MaxoutOutput', 'StateOutput', 'TanhOutput']

Vectors = Float[Array, 'batch d_model']


class StepOutput(nnx.Module):
  """Base class of outputs, which decoders build as `output(d_model, kernel_init, rngs=rngs)`."""

  def of_step(self, h: Vectors, x: Vectors, context: Vectors) -> Vectors:
    """Returns the output of a step.

    Args:
      h: first vector of the state after the step.
      x: the input of the token.
      context: vector of the source.
    """
    raise NotImplementedError


class StateOutput(StepOutput):
  """The output h itself, without parameters (Sutskever et al. 2014, https://arxiv.org/abs/1409.3215).

  Args:
    d_model: width of h and of the output.
    kernel_init: not read.
  """

  def __init__(self, d_model: int, kernel_init: Initializer, *, rngs: nnx.Rngs):
    pass

  def of_step(self, h: Vectors, x: Vectors, context: Vectors) -> Vectors:
    return h


class TanhOutput(StepOutput, Linear):
  """Output tanh(W [h; context] + b) (Luong et al. 2015, https://arxiv.org/abs/1508.04025, equation 5).

  Args:
    d_model: width of h, of the context and of the output.
    kernel_init: initialiser of W.
    use_bias: whether b exists.
  """

  def __init__(
    self, d_model: int, kernel_init: Initializer, *, use_bias: bool = True, rngs: nnx.Rngs
  ):
    axes = None, 'mlp', 'embed'
    super().__init__((2, d_model), (d_model,), axes, init=kernel_init, use_bias=use_bias, rngs=rngs)

  def of_step(self, h: Vectors, x: Vectors, context: Vectors) -> Vectors:
    return jnp.tanh(self(jnp.stack([h, context], axis=1)))


class MaxoutOutput(StepOutput, Linear):
  """Output max(U h + V x + C context + b) over pieces (Goodfellow et al. 2013, https://arxiv.org/abs/1302.4389), the
  deep output of Cho et al. 2014 (https://arxiv.org/abs/1406.1078, appendix A.1.2) and of Bahdanau et al. 2014
  (https://arxiv.org/abs/1409.0473, appendix A.2.2, which prints the state before the step as h).

  Args:
    d_model: width of h, x, the context and the output.
    kernel_init: initialiser of U, V and C.
    num_pieces: number of maps that the maximum is of.
    use_bias: whether b exists.
  """

  def __init__(
    self,
    d_model: int,
    kernel_init: Initializer,
    *,
    num_pieces: Size = 2,
    use_bias: bool = True,
    rngs: nnx.Rngs,
  ):
    shape = (3, d_model), (num_pieces, d_model), (None, 'mlp', None, 'embed')
    super().__init__(*shape, init=kernel_init, use_bias=use_bias, rngs=rngs)

  def of_step(self, h: Vectors, x: Vectors, context: Vectors) -> Vectors:
    return self(jnp.stack([h, x, context], axis=1)).max(axis=1)
