"""Position encodings of image patches: sines and cosines of row and column (MoCo v3, MAE), a bias on the scores by the
offset in rows and columns (Swin; convolution by attention), or rotations by row and column (DINOv3)."""

import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Positive, Size
from t2x.layers.dtypes import Dtypes, gather
from t2x.layers.initializers import normal, truncated_normal
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.positions.encoding import PositionEncoding, frequencies, rotate_pairs
from t2x.layers.positions.learned_grids import grid_sides
from t2x.layers.tokens import Tokens, grid_places

__all__ = [
  'GridBias',
  'GridRoPE',
  'LogGridBias',
  'QuadraticGridBias',
  'ScaledSinusoidalGrid',
  'SinusoidalGrid',
]


class SinusoidalGrid(PositionEncoding):
  """Fixed sines and cosines of the column, then of the row, d_model / 4 features each.

  Args:
    d_model: width of the tokens; a multiple of 4.
    num_extra: number of tokens before the patches, which are not changed.
    max_wavelength: frequency j is max_wavelength^(-j / (d_model / 4 - exponent_shift)).
    exponent_shift: 1 as in big_vision's ViT; 0 as in MAE.

  Raises:
    UserError: d_model is not a multiple of 4.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_extra: Natural = 1,
    max_wavelength: Positive = 10000.0,
    exponent_shift: Literal[0, 1] = 1,
    rngs: nnx.Rngs,
  ):
    if d_model % 4:
      raise UserError(f'SinusoidalGrid: d_model must be a multiple of 4, not {d_model}')
    self.num_extra = num_extra
    self.max_wavelength = max_wavelength
    self.exponent_shift = exponent_shift

  def embed(self, x, tokens):
    """Adds the position vectors to `x`, for any grid.

    Raises:
      UserError: the tokens have no grid of rows and columns, or their number is not `num_extra` plus the
        size of the grid.
    """
    grid = _grid(x, tokens, self.num_extra, type(self).__name__)
    vectors = np.pad(self.vectors(grid, x.shape[-1]), ((self.num_extra, 0), (0, 0)))
    return x + jnp.asarray(vectors, x.dtype)[None]

  def vectors(self, grid: tuple[int, int], size: int) -> np.ndarray:
    """Returns the vectors of a grid, [rows * columns, size], row by row."""
    quarter = size // 4
    exponents = np.arange(quarter) / max(quarter - self.exponent_shift, 1)
    row, column = (a.reshape(-1, 1) / self.max_wavelength**exponents for a in np.indices(grid))
    parts = [np.sin(column), np.cos(column), np.sin(row), np.cos(row)]
    return np.concatenate(parts, axis=1)


class ScaledSinusoidalGrid(SinusoidalGrid):
  """Fixed sines and cosines of row and column from 0 to 2 pi over the image, whatever its grid, so that a place has
  about the same vector in images of all sizes (DETR, https://arxiv.org/abs/2005.12872).

  Half of the features encode the row and half the column, with sine and cosine of a frequency side by side.

  Args:
    max_wavelength: frequency j is max_wavelength^(-j / (d_model / 4)).
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_extra: Natural = 0,
    max_wavelength: Positive = 10000.0,
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model, num_extra=num_extra, max_wavelength=max_wavelength, exponent_shift=0, rngs=rngs
    )

  def vectors(self, grid, size):
    """Returns the vectors of a grid. The last row and column are at 2 pi, up to the published code's 1e-6."""
    divisors = self.max_wavelength ** (np.arange(size // 4) / (size // 4))
    places = (
      2 * math.pi * (place + 1) / (length + 1e-6)
      for place, length in zip(np.indices(grid), grid, strict=True)
    )
    angles = [place.reshape(-1, 1) / divisors for place in places]
    pairs = [np.stack([np.sin(a), np.cos(a)], axis=-1).reshape(len(a), -1) for a in angles]
    return np.concatenate(pairs, axis=1)


class GridBias(PositionEncoding):
  """Learned bias on the scores for each head and offset of rows and columns between query and key (Swin Transformer,
  https://arxiv.org/abs/2103.14030, equation 4).

  Args:
    num_heads: number of heads of the attention.
    height: number of rows of the largest grid, or of a window.
    width: number of columns of the largest grid, or of a window.
    init: initialiser of the table [(2 height - 1) * (2 width - 1), num_heads], row by row of offsets.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    height: Size,
    width: Size,
    init: Initializer = truncated_normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.height, self.width = height, width
    shape, axes = ((2 * height - 1) * (2 * width - 1), num_heads), ('buckets', 'heads')
    # As published it is not decayed.
    self.table = param(init, shape, axes, rngs, kind='vector', keep_float32=True)

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    """Returns the bias of the offset query - key.

    Raises:
      UserError: the tokens are not those of a grid of at most `height` rows and `width` columns,
        without others before it.
    """
    grid = q_tokens.grid
    fits = grid is not None and len(grid) == 2 and grid[0] <= self.height and grid[1] <= self.width
    if not fits or k_tokens.grid != grid or q_tokens.num_extra:
      name = type(self).__name__
      raise UserError(
        f'{name} has offsets in a grid of {self.height} x {self.width}, but the tokens have the grid {grid} and '
        f'{q_tokens.num_extra} before it: raise {name}.height and {name}.width, or use it in Windowed'
      )
    (_, q_row, q_column), (_, k_row, k_column) = map(grid_places, (q_tokens, k_tokens))
    rows = q_row[:, :, None] - k_row[:, None] + self.height - 1
    columns = q_column[:, :, None] - k_column[:, None] + self.width - 1
    buckets = rows * (2 * self.width - 1) + columns
    return jnp.moveaxis(gather(self.biases().astype(Dtypes.softmax), buckets), -1, 1)

  def biases(self) -> Float[Array, 'buckets heads']:
    """Returns the bias of each offset, row by row from the most negative."""
    return self.table[...]


class LogGridBias(GridBias):
  """Bias of each head and offset by an MLP of the offset on a logarithmic scale: 16 sigmoid(W_down relu(W_up o + b))
  with o = sign(d) log2(1 + 8 |d|) / 3, where d is the offset of rows and columns divided by the largest of each (Swin
  v2, https://arxiv.org/abs/2111.09883, section 3.3).

  Args:
    d_model: not used.
    hidden_dim: width between the two projections.
    init: initialiser of both projections.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    height: Size,
    width: Size,
    hidden_dim: Size = 512,
    init: Initializer = truncated_normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.height, self.width = height, width
    self.up = Linear((2,), (hidden_dim,), ('coords', 'mlp'), init=init, rngs=rngs)
    axes = ('mlp', 'heads')
    self.down = Linear((hidden_dim,), (num_heads,), axes, init=init, use_bias=False, rngs=rngs)

  def biases(self):
    sides = self.height, self.width
    offsets = np.stack(
      np.meshgrid(*(np.arange(1 - n, n) / max(n - 1, 1) for n in sides), indexing='ij'), axis=-1
    )
    logarithms = np.sign(offsets) * np.log2(1 + 8 * np.abs(offsets)) / 3
    inputs = jnp.asarray(logarithms.reshape(-1, 2), self.up.kernel[...].dtype)
    return 16 * jax.nn.sigmoid(self.down(jax.nn.relu(self.up(inputs))))


class QuadraticGridBias(PositionEncoding):
  """Bias -s |d - c|^2 on the scores, where d is the offset key - query in rows and columns, with a learned centre c and
  sharpness s of each head (Cordonnier et al. 2020, https://arxiv.org/abs/1911.03584, section 3).

  With only this bias as scores, K^2 heads with the centres of a K x K kernel become a convolution as s grows; a centre
  beyond the edge of the grid selects the nearest patch instead of a zero.

  Args:
    num_heads: number of heads of the attention.
    sharpness: initial s.
    init: initialiser of the centres [num_heads, 2], in patches.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    sharpness: Positive = 1.0,
    init: Initializer = normal(2.0),
    rngs: nnx.Rngs,
  ):
    make = functools.partial(param, rngs=rngs, kind='vector', keep_float32=True)
    self.centres = make(init, (num_heads, 2), ('heads', 'coords'))
    self.sharpness = make(nnx.initializers.constant(sharpness), (num_heads,), ('heads',))

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    """Returns the bias of each head.

    Raises:
      UserError: the tokens are not those of a grid of rows and columns, without others before it.
    """
    grid = q_tokens.grid
    if grid is None or len(grid) != 2 or k_tokens.grid != grid or q_tokens.num_extra:
      raise UserError(
        f'QuadraticGridBias has offsets in a grid of rows and columns, but the tokens have the grid {grid} and '
        f'{q_tokens.num_extra} before it: use patches without class token and registers'
      )
    (_, *q_places), (_, *k_places) = map(grid_places, (q_tokens, k_tokens))
    offsets = [
      (k_place[:, None] - q_place[:, :, None])[:, None].astype(Dtypes.softmax)
      for q_place, k_place in zip(q_places, k_places, strict=True)
    ]
    centres, sharpness = (a[...].astype(Dtypes.softmax) for a in (self.centres, self.sharpness))
    distance = sum(
      jnp.square(offset - centres[None, :, i, None, None]) for i, offset in enumerate(offsets)
    )
    return -sharpness[None, :, None, None] * distance


class GridRoPE(PositionEncoding):
  """Rotary encoding of rows and columns: rotates half of the pairs of features of queries and keys by the row of the
  patch, the other half by its column (DINOv3, https://arxiv.org/abs/2508.10104; RoPE-ViT,
  https://arxiv.org/abs/2403.13298).

  The coordinates are those of the centres of the patches, from -1 to 1 over the image, so that a larger image of the
  same scene has the same angles. Pair j of head_dim / 4 for each coordinate c is rotated by 2 pi c base^(-j / (head_dim
  / 4)). Tokens before the grid (class token, registers) are not rotated.

  Args:
    base: ratio of the highest frequency to the lowest, about.

  Raises:
    UserError: when called, if a head's features are no multiple of 4, or the tokens have no grid of rows and columns.
  """

  def __init__(self, d_model: int, *, base: Positive = 100.0, rngs: nnx.Rngs):
    self.base = base

  def rotate(self, q, k, q_tokens, k_tokens):
    return self._rotate(q, q_tokens), self._rotate(k, k_tokens)

  def _rotate(self, x: Array, tokens: Tokens) -> Array:
    if x.shape[-1] % 4:
      raise UserError(
        f'GridRoPE rotates quarters of the features of a head, but a head has {x.shape[-1]}: make head_dim a '
        'multiple of 4'
      )
    grid, quarter = _grid(x, tokens, tokens.num_extra, 'GridRoPE'), x.shape[-1] // 4
    index = tokens.encoded_positions - tokens.num_extra
    radians = 2 * math.pi * frequencies(quarter, quarter, self.base)
    centres = [
      (2 * place + 1) / size - 1
      for place, size in zip(jnp.divmod(index, grid[1]), grid, strict=True)
    ]
    angles = jnp.concatenate(
      [centre[..., None] * radians[None, None] for centre in centres], axis=-1
    )
    angles = jnp.where(index[..., None] < 0, 0, angles.astype(jnp.float32))
    return rotate_pairs(x, angles[:, :, None])


def _grid(x: Array, tokens: Tokens, num_extra: int, name: str) -> tuple[int, int]:
  """Returns the rows and columns of the tokens' grid."""
  rows, columns = grid_sides(x, tokens, num_extra, name, 2)
  return rows, columns
