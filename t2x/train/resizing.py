"""What becomes of a parameter whose shape differs from that of the run it is loaded from.

Parts for `InitFrom.resize`: each makes an array of our shape out of the saved one and of our own
freshly initialised one. They run under `jax.jit` with both arrays on the devices, whatever the mesh.
"""

import dataclasses
import math
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers import resize_grid
from t2x.ranges import Natural, Size

__all__ = ['InterpolateGrid', 'InterpolatePositions', 'KeepNew', 'Resize', 'ResizeVocabulary']


@runtime_checkable
class Resize(Protocol):
  """A way from one shape to another."""

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    """An array of the shape of `target`.

    Args:
      source: the saved parameter.
      target: ours, as it was initialised. Given back as it is, it counts as kept new.

    Raises:
      UserError: these two shapes do not go together.
    """


@dataclasses.dataclass(frozen=True)
class KeepNew:
  """The saved one is left out: a head for other classes starts anew."""

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    return target


@dataclasses.dataclass(frozen=True)
class ResizeVocabulary:
  """The first entries are the saved ones, those beyond keep their initialisation.

  For tokenizers that share their first ids, in tables [vocab, ...], projections to logits
  [..., vocab] and biases [vocab]: whichever one axis differs. A smaller vocabulary cuts the last
  entries off. (A table of positions grows in the same way where positions are not to be stretched.)
  """

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    axes = [
      axis for axis in range(target.ndim) if source.shape[axis:][:1] != target.shape[axis:][:1]
    ]
    if source.ndim != target.ndim or len(axes) != 1:
      raise UserError('ResizeVocabulary wants shapes that differ in one axis, the vocabulary')
    (axis,) = axes
    shared = min(source.shape[axis], target.shape[axis])
    first = jax.lax.slice_in_dim(source, 0, shared, axis=axis).astype(target.dtype)
    return jax.lax.dynamic_update_slice_in_dim(target, first, 0, axis=axis)


@dataclasses.dataclass(frozen=True)
class InterpolatePositions:
  """Stretches a learned table [length, d_model] over another length (linear, in float32).

  Both ends of the table stay the ends: row i of L stands at (i + 1/2) / L.

  Attributes:
    num_extra: first rows, which are no positions and are kept (`LearnedPositions.offset`).
  """

  num_extra: Natural = 0

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    _check_table('InterpolatePositions', source, target, self.num_extra)
    length = target.shape[0] - self.num_extra
    extra, rows = source[: self.num_extra], source[self.num_extra :].astype(jnp.float32)
    rows = jax.image.resize(rows, (length, rows.shape[1]), method='linear')
    return jnp.concatenate([extra, rows]).astype(target.dtype)


@dataclasses.dataclass(frozen=True)
class InterpolateGrid:
  """Resizes the table of a `LearnedGrid` to another grid, just as that does for other image sizes
  (bicubic; ViT, https://arxiv.org/abs/2010.11929).

  Attributes:
    num_extra: first rows, which are kept (`LearnedGrid.num_extra`: the class token).
    old: (height, width) of the saved grid; None: it is square.
    new: (height, width) of ours; None: it is square.
  """

  num_extra: Natural = 1
  old: tuple[Size, Size] | None = None
  new: tuple[Size, Size] | None = None

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    _check_table('InterpolateGrid', source, target, self.num_extra)
    old = _grid('old', self.old, source.shape[0] - self.num_extra)
    new = _grid('new', self.new, target.shape[0] - self.num_extra)
    return resize_grid(source, old, new, self.num_extra).astype(target.dtype)


def _check_table(name: str, source: Array, target: Array, num_extra: int) -> None:
  fits = source.ndim == target.ndim == 2 and source.shape[1] == target.shape[1]
  if not fits:
    raise UserError(f'{name} wants two tables [positions, d_model] of the same d_model')
  if not 0 <= num_extra < min(source.shape[0], target.shape[0]):
    raise UserError(f'{name}.num_extra = {num_extra} leaves no positions')


def _grid(name: str, given: tuple[int, int] | None, patches: int) -> tuple[int, int]:
  grid = given or (math.isqrt(patches),) * 2
  if math.prod(grid) != patches:
    found = f'{grid[0]} x {grid[1]}' if given else 'no square'
    raise UserError(
      f'the {patches} patches of the {name} grid are {found}: set InterpolateGrid.{name} to '
      '(height, width), or num_extra to the number of class tokens'
    )
  return grid
