"""Mixing along some axes of a grid of tokens: divided and factorised attention of videos (TimeSformer:
Bertasius et al. 2021, https://arxiv.org/abs/2102.05095; ViViT: Arnab et al. 2021,
https://arxiv.org/abs/2103.15691), and means over axes."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, NonEmpty
from t2x.layers.attention.head_projections import check_no_source
from t2x.layers.caches import Cache
from t2x.layers.constraints import constrain
from t2x.layers.interfaces import Call, Merge, Result, Sublayer
from t2x.layers.tokens import Tokens
from t2x.layers.vision.grids import check_full, grid_of
from t2x.layers.vision.windowed import MixerOfParts, Windows, mix_rows

__all__ = ['AlongAxes', 'MeanOverAxes']


class AlongAxes(MixerOfParts):
  """Applies a token mixer along some axes of the grid that the tokens fill: tokens that differ in no other axis are a
  row of the mixer, such as those of one frame (axes 1 and 2 of a video) or those of one place in all frames (axis 0).

  Tokens before the grid (the class token) are the first ones of every row, and receive the mean of their results over
  all rows (TimeSformer's attention over space), or they are in no row and their result is 0 (over time). The rows of
  the mixer have the grid of the axes.

  Args:
    mixer: builds the token mixer, such as `MultiHeadAttention`; it needs no pattern and no cache.
    axes: the axes, from 0, in ascending order.
    with_extra: whether tokens before the grid are in the rows.

  Raises:
    UserError: `axes` are not ascending, or the mixer reads extras; when called, tokens do not fill a grid with these
      axes or are packed, the pattern is not Full(), or `with_extra` is False and no tokens are before the grid.
  """

  def __init__(
    self,
    d_model: int,
    *,
    mixer: Callable[..., Sublayer],
    axes: Annotated[Sequence[Natural], NonEmpty],
    with_extra: bool = True,
    rngs: nnx.Rngs,
  ):
    super().__init__(d_model, mixer, rngs)
    self.axes, self.with_extra = checked(self, axes), with_extra

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    """Mixes the tokens along the axes."""
    check_no_source(self, call)
    check_full(self, call)
    grid, num_extra = grid_of(self, call.tokens, extra=True), call.tokens.num_extra
    check_axes(self, grid)
    if not self.with_extra and not num_extra:
      raise UserError(
        'AlongAxes.with_extra = False has no effect, because no class token is before the grid: leave it out'
      )
    sides = tuple(side if axis in self.axes else 1 for axis, side in enumerate(grid))
    windows = Windows(grid, sides, (0,) * len(grid))
    extra, rows = x[:, :num_extra], windows.split(x[:, num_extra:])
    own = num_extra if self.with_extra else 0
    if own:
      repeated = jnp.repeat(extra, windows.number, axis=0)
      rows = jnp.concatenate([repeated, rows], axis=1)
    tokens = Tokens.row(
      own + math.prod(sides), grid=tuple(grid[axis] for axis in self.axes), num_extra=own
    )
    rows = constrain(rows, 'batch', 'length', 'embed')
    result = mix_rows(self.mixer, rows, call, tokens, windows.number)
    y = windows.join(result.x[:, own:])
    if own:
      of_rows = result.x[:, :own].reshape(len(x), windows.number, own, -1)
      extra = of_rows.mean(axis=1).astype(y.dtype)
    else:
      extra = jnp.zeros((len(x), num_extra, y.shape[-1]), y.dtype)
    recorded = {
      name: between_all(a, windows, num_extra, own) for name, a in result.recorded.items()
    }
    y = constrain(jnp.concatenate([extra, y], axis=1), 'batch', 'length', 'embed')
    return Result(y, aux=result.aux, recorded=recorded)


class MeanOverAxes(nnx.Module):
  """Averages the tokens of a grid over some axes, such as those of a frame before the temporal encoder of ViViT's
  second model (https://arxiv.org/abs/2103.15691, section 3.3).

  Args:
    d_model: width of the tokens, which does not change.
    axes: the axes, from 0, in ascending order.

  Raises:
    UserError: `axes` are not ascending; when called, tokens do not fill a grid with these axes and others,
      or have other metadata.
  """

  implements = (Merge,)
  # How many tokens it merges depends on the grid; stages have no limit of the length of their input for it.
  num_merged = 1
  keeps_tokens = False
  output_dim: int

  def __init__(self, d_model: int, *, axes: Annotated[Sequence[Natural], NonEmpty], rngs: nnx.Rngs):
    self.axes, self.output_dim = checked(self, axes), d_model

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Result:
    """Returns the means, and their metadata with the grid of the remaining axes."""
    grid = grid_of(self, call.tokens)
    check_axes(self, grid)
    others = tuple(side for axis, side in enumerate(grid) if axis not in self.axes)
    names = [
      name for name in ('coords', 'order', 'encoded') if getattr(call.tokens, name) is not None
    ]
    if not others or names or call.tokens.marks:
      problem = (
        f'the metadata {", ".join([*names, *call.tokens.marks])}' if others else 'no other axis'
      )
      raise UserError(
        f'MeanOverAxes.axes = {self.axes}: the tokens of the grid {grid} have {problem}'
      )
    axes = tuple(1 + axis for axis in self.axes)
    means = x.reshape(len(x), *grid, -1).mean(axis=axes).reshape(len(x), math.prod(others), -1)
    return Result(means, tokens=Tokens.row(means.shape[1], grid=others))


def checked(part: nnx.Module, axes: Sequence[int]) -> tuple[int, ...]:
  """Returns the axes as a tuple; raises UserError if they are not ascending."""
  if any(second <= first for first, second in itertools.pairwise(axes)):
    raise UserError(f'{type(part).__name__}.axes = {list(axes)}: must be ascending')
  return tuple(axes)


def check_axes(part: Any, grid: tuple[int, ...]) -> None:
  """Raises UserError if the grid lacks an axis."""
  if part.axes[-1] >= len(grid):
    raise UserError(
      f'{type(part).__name__}.axes = {list(part.axes)}, but the tokens have the grid {grid}: use '
      'an embedding with as many axes, such as @Tubelets'
    )


def between_all(
  probabilities: Float[Array, 'rows heads tokens tokens'],
  windows: Windows,
  num_extra: int,
  own: int,
) -> Float[Array, 'batch heads length length']:
  """Returns probabilities between all tokens from those of the rows of `AlongAxes`: of a token before the grid, the
  mean over the rows.

  Args:
    probabilities: those of the rows.
    windows: the rows as windows of the grid.
    num_extra: number of tokens before the grid.
    own: number of tokens before the grid in each row.
  """
  if not own:
    of_grid = windows.between_all(probabilities)
    return jnp.pad(of_grid, ((0, 0), (0, 0), (num_extra, 0), (num_extra, 0)))
  _, heads, size, _ = probabilities.shape
  number, length = windows.number, own + math.prod(windows.grid)
  by_row = probabilities.reshape(-1, number, heads, size, size).swapaxes(1, 2)
  # Of the tokens before the grid, and of those of the grid.
  extra = np.broadcast_to(np.arange(own), (number, own))
  places = np.concatenate([extra, own + windows.places()], axis=1)
  shares = np.where(np.arange(size) < own, 1 / number, 1)[None, None, None, :, None]
  result = jnp.zeros((len(by_row), heads, length, length), probabilities.dtype)
  return result.at[:, :, places[:, :, None], places[:, None, :]].add(
    (by_row * shares).astype(probabilities.dtype)
  )
