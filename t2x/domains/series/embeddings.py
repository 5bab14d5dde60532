"""Embeddings of time series: patches of one channel (PatchTST, https://arxiv.org/abs/2211.14730); convolutions of
values and tables of calendars (Informer, https://arxiv.org/abs/2012.07436)."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.base.calendar import CALENDAR_SIZES, CalendarField
from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.embeddings.inputs import Embedder, Input
from t2x.layers.initializers import lecun_normal, normal
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.positions.encoding import frequencies
from t2x.layers.tokens import Tokens

__all__ = [
  'CalendarEmbedding',
  'CalendarTables',
  'CircularConvolution',
  'SeriesPatches',
  'SinusoidTables',
  'ValueEmbedding',
  'linear_values',
]


class SeriesPatches(nnx.Module):
  """Embeds patches of consecutive values of one channel by a linear layer. The last patch ends with the last value;
  values before the first whole patch are not read.

  Args:
    d_model: width of the tokens.
    patch_length: number of values of a patch.
    stride: number of values from one patch to the next; less than `patch_length` for overlapping patches.
    init: initialiser of the kernel.

  Raises:
    UserError: when called, the series is shorter than a patch.
  """

  implements = (Embedder,)
  input: Input = Input('series', (None,), 'float32')
  num_extra = 0

  def __init__(
    self,
    d_model: int,
    *,
    patch_length: Size,
    stride: Size,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    self.patch_length, self.stride = patch_length, stride
    self.projection = Linear((patch_length,), (d_model,), ('patch', 'embed'), init=init, rngs=rngs)

  def num_patches(self, length: int) -> int:
    """Returns the number of patches of a series.

    Raises:
      UserError: it is shorter than a patch.
    """
    if length < self.patch_length:
      raise UserError(
        f'a series of {length} values is shorter than SeriesPatches.patch_length = {self.patch_length}'
      )
    return (length - self.patch_length) // self.stride + 1

  def __call__(
    self, series: Float[Array, 'batch values'], tokens: Tokens | None = None
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors of the patches and their metadata; the values have no metadata of their own."""
    length = series.shape[1]
    number = self.num_patches(length)
    first = length - self.patch_length - self.stride * (number - 1)
    columns = (
      first + self.stride * jnp.arange(number)[:, None] + jnp.arange(self.patch_length)[None]
    )
    x = self.projection(series.astype(self.projection.kernel[...].dtype)[:, columns])
    return x, Tokens.row(number)


@runtime_checkable
class ValueEmbedding(Protocol):
  """Embeds the features of each time. Built as `ValueEmbedding(d_model, num_features, rngs=rngs)`."""

  def __call__(
    self, x: Float[Array, 'batch length features']
  ) -> Float[Array, 'batch length d_model']:
    """Returns the vectors of the times."""
    ...


@runtime_checkable
class CalendarEmbedding(Protocol):
  """Embeds the calendar of each time. Built as `CalendarEmbedding(d_model, fields, rngs=rngs)`."""

  def __call__(
    self, calendar: Int[Array, 'batch length fields']
  ) -> Float[Array, 'batch length d_model']:
    """Returns the vectors of the times."""
    ...


def linear_values(
  d_model: int, num_features: int, *, init: Initializer = lecun_normal(), rngs: nnx.Rngs
) -> ValueEmbedding:
  """Builds a linear layer without bias.

  Args:
    d_model: width of the tokens.
    num_features: number of features of a time.
    init: initialiser of the kernel.
    rngs: random keys of the initial parameters.
  """
  axes = ('channels', 'embed')
  return Linear((num_features,), (d_model,), axes, init=init, use_bias=False, rngs=rngs)


class CircularConvolution(nnx.Module):
  """Embeds the features of each time and of the times beside it; the first time is beside the last one (Informer).

  Args:
    d_model: width of the tokens.
    num_features: number of features of a time.
    kernel_size: number of times, odd.
    init: initialiser of the kernel.

  Raises:
    UserError: `kernel_size` is even.
  """

  implements = (ValueEmbedding,)

  def __init__(
    self,
    d_model: int,
    num_features: int,
    *,
    kernel_size: Size = 3,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    if kernel_size % 2 == 0:
      raise UserError(f'CircularConvolution.kernel_size = {kernel_size}: must be odd')
    self.convolution = Linear(
      (kernel_size, num_features),
      (d_model,),
      ('taps', 'channels', 'embed'),
      init=init,
      use_bias=False,
      kind='filter',
      rngs=rngs,
    )

  def __call__(self, x):
    """Returns the vectors of the times."""
    kernel = self.convolution.kernel[...].astype(x.dtype)
    around = len(kernel) // 2
    padded = jnp.pad(x, ((0, 0), (around, around), (0, 0)), mode='wrap')
    return jax.lax.conv_general_dilated(
      padded, kernel, (1,), 'VALID', dimension_numbers=('NWC', 'WIO', 'NWC')
    )


class CalendarTables(nnx.Module):
  """Embeds a calendar as the sum of a learned vector of each field's value (Informer).

  Args:
    d_model: width of the tokens.
    fields: fields of the calendar.
    init: initialiser of the tables.
  """

  implements = (CalendarEmbedding,)

  def __init__(
    self,
    d_model: int,
    fields: Sequence[CalendarField],
    *,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.tables = nnx.List(
      [
        param(init, (CALENDAR_SIZES[name], d_model), (None, 'embed'), rngs, kind='table')
        for name in fields
      ]
    )

  def __call__(
    self, calendar: Int[Array, 'batch length fields']
  ) -> Float[Array, 'batch length d_model']:
    """Returns the vectors of the times."""
    vectors = [table[...][calendar[..., i]] for i, table in enumerate(self.tables)]
    return sum(vectors[1:], vectors[0])


class SinusoidTables(nnx.Module):
  """Embeds a calendar as the sum of sinusoids of each field's value, without parameters (Informer's fixed tables).

  Args:
    d_model: width of the tokens; even.
    fields: fields of the calendar.
  """

  implements = (CalendarEmbedding,)

  def __init__(self, d_model: int, fields: Sequence[CalendarField], *, rngs: nnx.Rngs):
    if d_model % 2:
      raise UserError(f'SinusoidTables: d_model must be even, not {d_model}')
    self.d_model = d_model

  def __call__(
    self, calendar: Int[Array, 'batch length fields']
  ) -> Float[Array, 'batch length d_model']:
    """Returns the vectors of the times."""
    half = self.d_model // 2
    rates = frequencies(half, half, 10_000.0).reshape(1, 1, 1, -1)
    angles = calendar[..., None].astype(jnp.float32) * rates
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return waves.reshape(*calendar.shape, self.d_model).sum(axis=2)
