"""Head over the outputs of all stages of a pyramid (SegFormer, https://arxiv.org/abs/2105.15203, section 3.2)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Size
from t2x.layers.constraints import constrain
from t2x.layers.initializers import truncated_normal
from t2x.layers.interfaces import Join, Norm
from t2x.layers.parameters import Initializer, Linear
from t2x.layers.tokens import Tokens
from t2x.layers.vision.convolutions import GridNorm, GroupNorm
from t2x.layers.vision.grids import filled_grid, resized

__all__ = ['AllMLP']


class AllMLP(nnx.Module):
  """Projects the output of each stage to one width, resizes all to the grid of the first stage, and projects their
  concatenation, from the last stage to the first.

  Args:
    widths: width of each stage.
    width: width of the projections and of the output.
    norm: builds the norm of the output. The paper's is batch normalisation: `FrozenBatchNorm` for released weights.
    activation: activation after the norm.
    init: initialiser of the projections.

  Raises:
    UserError: when called, the tokens of a stage do not fill a grid of rows and columns.
  """

  implements = (Join,)
  output_dim: int

  def __init__(
    self,
    widths: Sequence[int],
    *,
    width: Size,
    norm: Callable[..., Norm | GridNorm] = GroupNorm,
    activation: Callable[[Array], Array] = jax.nn.relu,
    init: Initializer = truncated_normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.output_dim, self.activation = width, activation

    def linear(size: int, axis: str, use_bias: bool) -> Linear:
      return Linear((size,), (width,), (axis, 'embed'), init=init, use_bias=use_bias, rngs=rngs)

    self.projections = nnx.List([linear(size, 'embed', True) for size in widths])
    self.fuse = linear(width * len(widths), 'merged', False)
    self.norm: Norm = norm(width, rngs=rngs)

  def __call__(
    self, outputs: Sequence[tuple[Float[Array, 'batch _ _'], Tokens]]
  ) -> tuple[Float[Array, 'batch length width'], Tokens]:
    """Returns the vectors of the grid of the first stage, row by row from the top left, and their metadata."""
    grids = [filled_grid(self, tokens) for _, tokens in outputs]
    projected = [
      resized(projection(x).reshape(len(x), *grid, -1), grids[0])
      for projection, (x, _), grid in zip(self.projections, outputs, grids, strict=True)
    ]
    y = self.activation(self.norm(self.fuse(jnp.concatenate(projected[::-1], axis=-1))))
    y = y.reshape(len(y), -1, self.output_dim)
    return constrain(y, 'batch', 'length', 'embed'), outputs[0][1]
