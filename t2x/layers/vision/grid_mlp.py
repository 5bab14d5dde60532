"""Feed-forward layer that mixes grid neighbours (Mix-FFN of SegFormer, https://arxiv.org/abs/2105.15203, 3.1)."""

from typing import Any

from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.head_projections import check_no_source
from t2x.layers.caches import WithoutCache
from t2x.layers.feed_forward.mlp import MLP
from t2x.layers.initializers import lecun_normal
from t2x.layers.parameters import Initializer
from t2x.layers.vision.convolutions import GridConvolution
from t2x.layers.vision.grids import check_full

__all__ = ['GridMLP']


class GridMLP(WithoutCache, MLP):
  """MLP with a depthwise convolution of its hidden features before the activation; the zeros around the grid show a
  token its place, so that a model needs no position encoding.

  Args:
    kernel_size: rows and columns of the convolution; odd.
    filter_init: initialiser of the convolution.
    settings: those of `MLP`.

  Raises:
    UserError: kernel_size is even; when called, the tokens do not fill a grid of rows and columns, the pattern is not
      Full(), or there is a source.
  """

  no_cache = (
    'cannot decode token by token, because a token depends on later ones: use it in an Encoder'
  )

  reads = frozenset({'pattern'})

  def __init__(
    self,
    d_model: int,
    *,
    hidden_dim: Size,
    kernel_size: Size = 3,
    filter_init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    if kernel_size % 2 == 0:
      raise UserError(f'GridMLP.kernel_size = {kernel_size}: must be odd')
    super().__init__(d_model, hidden_dim=hidden_dim, rngs=rngs, **settings)
    self.convolution = GridConvolution(
      hidden_dim, kernel_size=kernel_size, group_size=1, init=filter_init, rngs=rngs
    )

  def __call__(self, x, call, cache=None):
    check_no_source(self, call)
    check_full(self, call)
    return super().__call__(x, call, cache)

  def _hidden(self, x, call):
    return self.activation(self.convolution(self.up(x), call).x)
