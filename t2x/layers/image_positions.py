"""Where an image patch stands: a learned table that is interpolated for other image sizes (ViT,
https://arxiv.org/abs/2010.11929), or sines and cosines of row and column (MoCo v3, MAE)."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers.base import Initializer, Tokens, param
from t2x.layers.dtypes import broadcast
from t2x.layers.initializers import normal
from t2x.layers.position_encoding import PositionEncoding
from t2x.ranges import Natural, Positive, Size


class LearnedGrid(PositionEncoding):
  """A learned vector for each extra token and each patch of a grid.

  Args:
    d_model: width of the tokens.
    height: rows of the trained grid, in patches.
    width: its columns.
    num_extra: tokens before the patches (the class token).
    init: initialiser of the table [num_extra + height * width, d_model].
  """

  def __init__(
    self,
    d_model: int,
    *,
    height: Size,
    width: Size,
    num_extra: Natural = 1,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.height = height
    self.width = width
    self.num_extra = num_extra
    self.table = param(init, (num_extra + height * width, d_model), ('length', 'embed'), rngs)

  def embed(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> Float[Array, 'batch length d_model']:
    """x plus its positions; a grid other than the trained one interpolates them (bicubic).

    Raises:
      UserError: the tokens have no grid of rows and columns, or are not `num_extra` and those of the grid.
    """
    grid = _grid(x, tokens, self.num_extra, 'LearnedGrid')
    table = self.table[...]
    if grid != (self.height, self.width):
      table = resize_grid(table, (self.height, self.width), grid, self.num_extra)
    return x + broadcast(table, x.shape, x.dtype)


def resize_grid(
  table: Float[Array, 'old_tokens d_model'],
  old: tuple[int, int],
  new: tuple[int, int],
  num_extra: int = 0,
) -> Float[Array, 'new_tokens d_model']:
  """A table of positions for a grid of another (rows, columns), interpolated (bicubic, in float32).

  The first `num_extra` rows, those of tokens that stand nowhere in the grid, stay as they are.
  """
  extra, patches = table[:num_extra], table[num_extra:]
  image = patches.astype(jnp.float32).reshape(*old, -1)
  image = jax.image.resize(image, (*new, image.shape[-1]), method='cubic')
  return jnp.concatenate([extra, image.reshape(-1, image.shape[-1]).astype(table.dtype)])


class SinusoidalGrid(PositionEncoding):
  """Sines and cosines of column, then of row, a quarter of d_model each; nothing is learnt.

  Args:
    d_model: width of the tokens; a multiple of 4.
    num_extra: tokens before the patches, which get nothing added.
    max_wavelength: frequency j is max_wavelength^(-j / (d_model / 4 - exponent_shift)).
    exponent_shift: 1 as big_vision's ViT and MoCo v3's successors there; 0 as MAE.

  Raises:
    UserError: d_model is no multiple of 4.
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
      raise UserError(f'SinusoidalGrid needs a d_model that is a multiple of 4, not {d_model}')
    self.num_extra = num_extra
    self.max_wavelength = max_wavelength
    self.exponent_shift = exponent_shift

  def embed(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> Float[Array, 'batch length d_model']:
    """x plus its positions, for any grid.

    Raises:
      UserError: the tokens have no grid of rows and columns, or are not `num_extra` and those of the grid.
    """
    grid = _grid(x, tokens, self.num_extra, 'SinusoidalGrid')
    quarter = x.shape[-1] // 4
    exponents = np.arange(quarter) / max(quarter - self.exponent_shift, 1)
    row, column = (a.reshape(-1, 1) / self.max_wavelength**exponents for a in np.indices(grid))
    parts = [np.sin(column), np.cos(column), np.sin(row), np.cos(row)]
    table = np.pad(np.concatenate(parts, axis=1), ((self.num_extra, 0), (0, 0)))
    return x + jnp.asarray(table, x.dtype)[None]


def _grid(x: Array, tokens: Tokens, num_extra: int, name: str) -> tuple[int, int]:
  """Rows and columns of the tokens' grid."""
  if tokens.grid is None or len(tokens.grid) != 2:
    raise UserError(
      f'{name} needs a grid of rows and columns, but these tokens have the grid {tokens.grid}: use an '
      'embedding that sets Tokens.grid (PatchEmbedding)'
    )
  rows, columns = tokens.grid
  if x.shape[1] != num_extra + rows * columns:
    raise UserError(
      f'{x.shape[1]} tokens are not the {num_extra} of {name}.num_extra and those of a grid of '
      f'{rows} x {columns}: set num_extra to the number of class tokens'
    )
  return rows, columns
