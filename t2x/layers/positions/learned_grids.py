"""Learned position vectors of the patches of images (ViT, https://arxiv.org/abs/2010.11929) and of videos (ViViT,
https://arxiv.org/abs/2103.15691; TimeSformer, https://arxiv.org/abs/2102.05095), interpolated for other sizes."""

import functools
import logging
import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Size
from t2x.layers.constraints import constrain
from t2x.layers.initializers import normal
from t2x.layers.parameters import Initializer, param
from t2x.layers.positions.encoding import PositionEncoding
from t2x.layers.products import broadcast
from t2x.layers.tokens import Tokens

__all__ = ['LearnedFrames', 'LearnedGrid', 'resize_grid']

log = logging.getLogger('t2x')

Interpolation = Literal['cubic', 'linear']


class LearnedGrid(PositionEncoding):
  """Learned position vectors of extra tokens and of the patches of a grid.

  Args:
    d_model: width of the tokens.
    height: number of rows of the trained grid, in patches.
    width: number of columns of the trained grid, in patches.
    frames: number of frames of the trained grid, in tubelets. None: tokens of an image, or of a video whose frames have
      the same vectors; `LearnedFrames` adds vectors of the frames.
    num_extra: number of tokens before the patches that have a vector, the first ones (the class token). Others, such
      as registers, have none.
    interpolation: how the table is resized for another grid; 'linear' in FlexiViT.
    init: initialiser of the table [num_extra + (frames *) height * width, d_model].
  """

  def __init__(
    self,
    d_model: int,
    *,
    height: Size,
    width: Size,
    frames: Size | None = None,
    num_extra: Natural = 1,
    interpolation: Interpolation = 'cubic',
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.height, self.width = height, width
    self.sides = (height, width) if frames is None else (frames, height, width)
    self.num_extra = num_extra
    self.interpolation: Interpolation = interpolation
    shape = num_extra + math.prod(self.sides), d_model
    self.table = param(init, shape, ('length', 'embed'), rngs, kind='table')

  def embed(self, x, tokens):
    """Adds the position vectors to `x`, interpolated unless the grid is the trained one.

    Raises:
      UserError: the tokens have no grid of rows and columns, or of frames, rows and columns, or fewer than `num_extra`
        tokens before it.
    """
    num_extra, num_plain = self.num_extra, max(tokens.num_extra - self.num_extra, 0)
    is_video = tokens.grid is not None and len(tokens.grid) == 3
    axes = 3 if is_video else len(self.sides)
    grid = grid_sides(x, tokens, num_extra + num_plain, 'LearnedGrid', axes)
    # Gathered first: the compiler cannot go from features that fsdp splits to tokens that context splits.
    table, own = constrain(self.table[...], None, 'embed'), grid[-len(self.sides) :]
    if own != self.sides:
      _log_resizing(self.sides, own)
      table = resize_grid(table, self.sides, own, num_extra, self.interpolation)
    if own != grid:
      repeated = jnp.tile(table[num_extra:], (grid[0], 1))
      table = jnp.concatenate([table[:num_extra], repeated])
    if num_plain:
      plain = jnp.zeros((num_plain, table.shape[1]), table.dtype)
      table = jnp.concatenate([table[:num_extra], plain, table[num_extra:]])
    return x + broadcast(table, x.shape, x.dtype)


@functools.cache
def _log_resizing(old: tuple[int, ...], new: tuple[int, ...]) -> None:
  """Logs once that a table is resized in each step, which a wrong `height` would cause silently."""
  sides = (' x '.join(map(str, grid)) for grid in (old, new))
  log.info('positions: a table of {} is resized to {}'.format(*sides))


class LearnedFrames(PositionEncoding):
  """Learned vectors of the frames of a video, added to all tokens of a frame; tokens before the grid have none
  (TimeSformer, https://arxiv.org/abs/2102.05095, equation 1 in the authors' code).

  Args:
    d_model: width of the tokens.
    frames: number of frames of the trained grid, in tubelets; for other videos the table is interpolated linearly.
    init: initialiser of the table [frames, d_model]; zeros in the authors' code.
  """

  def __init__(
    self, d_model: int, *, frames: Size, init: Initializer = normal(0.02), rngs: nnx.Rngs
  ):
    self.frames = frames
    self.table = param(init, (frames, d_model), ('length', 'embed'), rngs, kind='table')

  def embed(self, x, tokens):
    """Adds the vectors of the frames.

    Raises:
      UserError: the tokens have no grid of frames, rows and columns.
    """
    frames, rows, columns = grid_sides(x, tokens, tokens.num_extra, 'LearnedFrames', 3)
    table = self.table[...]
    if frames != self.frames:
      table = resize_grid(table, (self.frames,), (frames,), interpolation='linear')
    extra = jnp.zeros((tokens.num_extra, table.shape[1]), table.dtype)
    table = jnp.concatenate([extra, jnp.repeat(table, rows * columns, axis=0)])
    return x + broadcast(table, x.shape, x.dtype)


def resize_grid(
  table: Float[Array, 'old_tokens d_model'],
  old: tuple[int, ...],
  new: tuple[int, ...],
  num_extra: int = 0,
  interpolation: Interpolation = 'cubic',
) -> Float[Array, 'new_tokens d_model']:
  """Interpolates a table of position vectors to another grid size, in float32 and with antialiasing.

  Args:
    table: position vectors of the extra tokens and of the grid, row by row.
    old: sides of the table's grid, such as (rows, columns).
    new: sides of the result's grid.
    num_extra: number of extra tokens, whose vectors are not changed.
    interpolation: 'cubic' or 'linear', in all dimensions.
  """
  extra, patches = table[:num_extra], table[num_extra:]
  image = patches.astype(jnp.float32).reshape(*old, -1)
  image = jax.image.resize(image, (*new, image.shape[-1]), method=interpolation)
  return jnp.concatenate([extra, image.reshape(-1, image.shape[-1]).astype(table.dtype)])


def grid_sides(x: Array, tokens: Tokens, num_extra: int, name: str, axes: int) -> tuple[int, ...]:
  """Returns the sides of the tokens' grid; raises UserError if its number of axes differs, or `x` has other tokens."""
  if tokens.grid is None or len(tokens.grid) != axes:
    needs = 'rows and columns' if axes == 2 else 'frames, rows and columns'
    part = 'PatchEmbedding' if axes == 2 else 'Tubelets'
    raise UserError(
      f'{name} needs a grid of {needs}, but the tokens have the grid {tokens.grid}: use an '
      f'embedding that sets Tokens.grid, such as {part}'
    )
  if x.shape[1] != num_extra + math.prod(tokens.grid):
    raise UserError(
      f'{x.shape[1]} tokens are not {num_extra} (class tokens and registers) plus those of a grid of '
      f'{" x ".join(map(str, tokens.grid))}: set {name}.num_extra to the number of class tokens'
    )
  return tokens.grid
