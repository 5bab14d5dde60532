"""Functions that resize saved parameters to the shapes of a new model; see `InitFrom.resize`."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, NonEmpty, Size, make_tuples
from t2x.layers import resample_patches, resize_grid

__all__ = [
  'InterpolateGrid',
  'InterpolatePositions',
  'KeepNew',
  'ResamplePatches',
  'Resize',
  'ResizeVocabulary',
  'TakeLayers',
]


@runtime_checkable
class Resize(Protocol):
  """Resizes a saved parameter to the shape of a parameter of the new model."""

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    """Returns an array of the shape of `target`.

    Args:
      source: the saved parameter.
      target: the initialised parameter of the new model. Returning this object keeps it as new.

    Raises:
      UserError: the shapes cannot be resized to each other.
    """


@dataclasses.dataclass(frozen=True)
class KeepNew(Resize):
  """Keeps the initialised parameter, for example a head for other classes."""

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    return target


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakeLayers(Resize):
  """Copies some layers of a deeper stack, as DistilBERT copies every second one (https://arxiv.org/abs/1910.01108).

  For the parameters of a `Stack` whose blocks are all the same, 'body.stack.blocks.*' -> [layers, ...].

  Attributes:
    layers: numbers of the layers of the saved stack, one for each layer of the new one.
  """

  layers: Annotated[Sequence[Natural], NonEmpty]

  def __post_init__(self):
    # The compiled function is cached by its settings.
    make_tuples(self, 'layers')

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    layers = list(self.layers)
    if source.shape[1:] != target.shape[1:] or not source.ndim:
      raise UserError('TakeLayers needs stacks of layers with parameters of the same shapes')
    if len(layers) != len(target) or max(layers) >= len(source):
      raise UserError(
        f'TakeLayers.layers = {layers} must be {len(target)} numbers below {len(source)}, the layers of the '
        'saved stack'
      )
    return source[jnp.array(layers)].astype(target.dtype)


@dataclasses.dataclass(frozen=True)
class ResizeVocabulary(Resize):
  """Copies the first entries along the axis that differs; further entries keep their initialisation.

  For tokenizers that share their first ids: tables [vocab, ...], projections to logits [..., vocab] and
  biases [vocab]. A smaller vocabulary drops the last entries. `InitFrom` leaves out the entries after those of the
  saved run's tokenizer, which are padding (`TokenEmbedding.vocab_multiple`). It also extends tables of positions
  without interpolation.
  """

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    axes = [
      axis for axis in range(target.ndim) if source.shape[axis:][:1] != target.shape[axis:][:1]
    ]
    if source.ndim != target.ndim or len(axes) > 1:
      raise UserError('ResizeVocabulary needs shapes that differ in one axis only, the vocabulary')
    axis = axes[0] if axes else 0
    shared = min(source.shape[axis], target.shape[axis])
    first = jax.lax.slice_in_dim(source, 0, shared, axis=axis).astype(target.dtype)
    return jax.lax.dynamic_update_slice_in_dim(target, first, 0, axis=axis)


@dataclasses.dataclass(frozen=True)
class InterpolatePositions(Resize):
  """Interpolates a learned table [length, d_model] linearly, in float32, to another length.

  Row i of a table of length L has the coordinate (i + 1/2) / L.

  Attributes:
    num_extra: number of first rows that are not positions and are copied (`LearnedPositions.offset`).
  """

  num_extra: Natural = 0

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    _check_table('InterpolatePositions', source, target, self.num_extra)
    length = target.shape[0] - self.num_extra
    extra, rows = source[: self.num_extra], source[self.num_extra :].astype(jnp.float32)
    rows = jax.image.resize(rows, (length, rows.shape[1]), method='linear')
    return jnp.concatenate([extra, rows]).astype(target.dtype)


@dataclasses.dataclass(frozen=True)
class InterpolateGrid(Resize):
  """Interpolates the table of a `LearnedGrid` to another grid (bicubic; ViT, https://arxiv.org/abs/2010.11929).

  `LearnedGrid` does the same for other image sizes.

  Attributes:
    num_extra: number of first rows that are copied (`LearnedGrid.num_extra`: the class token).
    old: (height, width) of the saved grid; None for a square grid.
    new: (height, width) of the new grid; None for a square grid.
  """

  num_extra: Natural = 1
  old: tuple[Size, Size] | None = None
  new: tuple[Size, Size] | None = None

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    _check_table('InterpolateGrid', source, target, self.num_extra)
    old = _grid('old', self.old, source.shape[0] - self.num_extra)
    new = _grid('new', self.new, target.shape[0] - self.num_extra)
    return resize_grid(source, old, new, self.num_extra).astype(target.dtype)


@dataclasses.dataclass(frozen=True)
class ResamplePatches(Resize):
  """Resamples the kernel [height, width, channels, d_model] of a `PatchEmbedding` to another patch size (FlexiViT,
  https://arxiv.org/abs/2212.08013)."""

  def __call__(self, source: Float[Array, '...'], target: Float[Array, '...']) -> Array:
    if not source.ndim == target.ndim == 4 or source.shape[2:] != target.shape[2:]:
      raise UserError(
        'ResamplePatches needs two kernels [height, width, channels, d_model] that differ in height and width only, '
        f'not {source.shape} and {target.shape}'
      )
    return resample_patches(source, *target.shape[:2]).astype(target.dtype)


def _check_table(name: str, source: Array, target: Array, num_extra: int) -> None:
  fits = source.ndim == target.ndim == 2 and source.shape[1] == target.shape[1]
  if not fits:
    raise UserError(f'{name} needs two tables [positions, d_model] of the same d_model')
  if not 0 <= num_extra < min(source.shape[0], target.shape[0]):
    raise UserError(
      f'{name}.num_extra = {num_extra} must be less than the number of rows of both tables, '
      f'{source.shape[0]} and {target.shape[0]}'
    )


def _grid(name: str, size: tuple[int, int] | None, patches: int) -> tuple[int, int]:
  grid = size or (math.isqrt(patches),) * 2
  if math.prod(grid) != patches:
    expected = f'a {grid[0]} x {grid[1]} grid' if size else 'a square grid'
    raise UserError(
      f'the {name} table has {patches} patches, which are not {expected}: set InterpolateGrid.{name} to '
      '(height, width), or num_extra to the number of class tokens'
    )
  return grid
