"""Attention of all tokens of a grid to fewer keys (PVT, https://arxiv.org/abs/2102.12122, section 3.3; SegFormer,
https://arxiv.org/abs/2105.15203, section 3.1)."""

import math
from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.key_values import ProjectedKeyValues, Stored
from t2x.layers.attention.projections import Heads, head_projection
from t2x.layers.interfaces import Call, Norm
from t2x.layers.norms import LayerNorm
from t2x.layers.parameters import Initializer
from t2x.layers.tokens import Tokens
from t2x.layers.vision.convolutions import GridConvolution
from t2x.layers.vision.grids import check_full, filled_grid

__all__ = ['ReducedKeyValues']


class ReducedKeyValues(ProjectedKeyValues):
  """Keys and values of squares of `ratio` x `ratio` tokens, whose vectors a convolution and a norm compute.

  Rows and columns that fill no square are left out, as in the authors' code.

  Args:
    heads: sizes of the attention layer.
    use_bias: whether the projections have biases.
    kernel_init: initialiser of the convolution and of the projections.
    ratio: side of a square in tokens, at least 2.
    norm: builds the norm of the vectors of squares.

  Raises:
    UserError: ratio is 1; when called, the tokens do not fill a grid of at least one square, the pattern is not Full(),
      or there is a position encoding.
  """

  cacheable = False

  def __init__(
    self,
    heads: Heads,
    use_bias: bool,
    kernel_init: Initializer,
    *,
    ratio: Size,
    norm: Callable[..., Norm] = LayerNorm,
    rngs: nnx.Rngs,
  ):
    if ratio == 1:
      raise UserError(
        'ReducedKeyValues.ratio = 1 reduces nothing: leave MultiHeadAttention.key_values out'
      )
    self.ratio = ratio
    self.shapes = heads.keys, heads.values
    self.reduction = GridConvolution(
      heads.d_model, kernel_size=ratio, stride=ratio, norm=norm, init=kernel_init, rngs=rngs
    )
    self.k, self.v = (
      head_projection(heads.d_model, shape, kernel_init, use_bias, rngs, axis='kv_heads')
      for shape in self.shapes
    )

  def project(self, x: Float[Array, 'batch length d_model'], call: Call) -> Stored:
    """Returns the keys and the values of the squares."""
    check_full(self, call)
    if call.encoding is not None:
      raise UserError(
        f'ReducedKeyValues has keys of squares of tokens, for which {type(call.encoding).__name__} has no positions: '
        'leave the encoding out'
      )
    self.tokens(call)
    squares = self.reduction(x, call).x
    return self.k(squares), self.v(squares)

  def tokens(self, call: Call) -> Tokens:
    """Returns the metadata of the squares."""
    rows, columns = filled_grid(self, call.tokens)
    grid = rows // self.ratio, columns // self.ratio
    if not all(grid):
      raise UserError(
        f'ReducedKeyValues.ratio = {self.ratio} is larger than a side of the grid {rows} x '
        f'{columns}, which then has no '
        'keys: use larger images or a smaller ratio'
      )
    return Tokens.row(math.prod(grid), grid=grid)
