"""Mixing inside the windows of a grid of tokens (Swin Transformer: Liu et al. 2021, https://arxiv.org/abs/2103.14030)."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Size
from t2x.layers.attention.head_projections import check_no_source
from t2x.layers.caches import Cache, WithoutCache
from t2x.layers.constraints import constrain
from t2x.layers.interfaces import Call, Result, Sublayer
from t2x.layers.keys import fold_in
from t2x.layers.patterns.algebra import Full
from t2x.layers.tokens import Tokens
from t2x.layers.vision.grids import check_full, grid_of

__all__ = ['Windowed']

AnyArray = TypeVar('AnyArray', Array, np.ndarray)


class MixerOfParts(WithoutCache, nnx.Module):
  """Base class of sublayers that apply a token mixer to parts of the rows of a grid, as rows of their own.

  Args:
    d_model: width of the input and output.
    mixer: builds the token mixer.
    rngs: random keys of the initial parameters.

  Raises:
    UserError: the mixer passes arrays from layer to layer.
  """

  no_cache = 'cannot decode token by token: use it in an Encoder, or a Decoder with a pattern'

  implements = (Sublayer,)
  max_length: int | None = None

  def __init__(self, d_model: int, mixer: Callable[..., Sublayer], rngs: nnx.Rngs):
    self.mixer = mixer(d_model, rngs=rngs)
    if 'extras' in self.mixer.reads:
      raise UserError(
        f'{type(self).__name__}.mixer passes arrays to later layers (value residuals), whose windows may differ: '
        'leave them out'
      )

  @property
  def reads(self) -> frozenset[str]:
    return (self.mixer.reads & {'encoding', 'record.probabilities'}) | {'pattern'}


class Windowed(MixerOfParts):
  """Applies a token mixer to each window of the grid that the tokens fill, such as 7 x 7 patches of an image.

  Windows become rows of the mixer, whose tokens have the grid of the window. With a shift, windows start `shift` rows
  and columns later: the map is rolled, and the tokens that wrap around are segments of their own (section 3.2). As
  published, zeros fill up a map that windows do not divide, and act as keys. A side of the map that is
  not longer than the window is one window, without shift. Recorded probabilities cover all tokens of the
  map, without the zeros.

  Args:
    mixer: builds the token mixer, such as `MultiHeadAttention`; it needs no pattern and no cache.
    size: side of a window in tokens.
    shift: number of tokens by which windows are shifted; size // 2 in every second block of Swin.

  Raises:
    UserError: `shift` is not less than `size`, or the mixer reads extras; when called, tokens do not fill a grid or are
      packed, or the pattern is not Full().
  """

  def __init__(
    self,
    d_model: int,
    *,
    mixer: Callable[..., Sublayer],
    size: Size,
    shift: Natural = 0,
    rngs: nnx.Rngs,
  ):
    if shift >= size:
      raise UserError(f'Windowed.shift = {shift} must be less than Windowed.size = {size}')
    super().__init__(d_model, mixer, rngs)
    self.size, self.shift = size, shift

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    """Mixes the tokens of each window of `x`."""
    check_no_source(self, call)
    check_full(self, call)
    windows = Windows.of(grid_of(self, call.tokens), self.size, self.shift)
    batch, number = len(x), windows.number
    regions = windows.segments()
    segments = None if regions is None else jnp.tile(jnp.asarray(regions), (batch, 1))
    tokens = Tokens.row(math.prod(windows.sides), segments=segments, grid=windows.sides)
    rows = constrain(windows.split(x), 'batch', 'length', 'embed')
    result = mix_rows(self.mixer, rows, call, tokens, number)
    recorded = {name: windows.between_all(a) for name, a in result.recorded.items()}
    joined = constrain(windows.join(result.x), 'batch', 'length', 'embed')
    return Result(joined, aux=result.aux, recorded=recorded)


def mix_rows(
  mixer: Sublayer,
  rows: Float[Array, 'rows tokens d_model'],
  call: Call,
  tokens: Tokens,
  number: int,
) -> Result:
  """Applies a mixer to parts of the rows of a batch as rows of their own.

  Args:
    mixer: the token mixer; it sees all tokens of a part.
    rows: the parts, those of one row of the batch one after another.
    call: the call of the whole rows.
    tokens: metadata of the tokens of a part.
    number: number of parts of each row.

  Returns:
    The result of the parts, with dropout keys of their own and the losses of the rows of the batch.
  """
  key = call.key
  if key is not None and key.ndim:
    key = jax.vmap(fold_in, (None, 0), 1)(key, jnp.arange(number)).reshape(-1)
  result = mixer(rows, dataclasses.replace(call, tokens=tokens, pattern=Full(), key=key))
  losses = {name: a.reshape(-1, number).mean(axis=1) for name, a in result.aux.losses.items()}
  return dataclasses.replace(result, aux=dataclasses.replace(result.aux, losses=losses))


@dataclasses.dataclass(frozen=True)
class Windows:
  """The windows of a grid.

  Attributes:
    grid: sides of the grid.
    sides: sides of a window.
    shifts: shift of the windows along each side.
  """

  grid: tuple[int, ...]
  sides: tuple[int, ...]
  shifts: tuple[int, ...]

  @staticmethod
  def of(grid: Sequence[int], size: int, shift: int) -> 'Windows':
    """Returns windows of `size` along each side; a side that is not longer is one window."""
    sides = tuple(min(size, side) for side in grid)
    return Windows(tuple(grid), sides, tuple(shift if side > size else 0 for side in grid))

  @property
  def numbers(self) -> tuple[int, ...]:
    """Numbers of windows along each side."""
    return tuple(-(-side // window) for side, window in zip(self.grid, self.sides, strict=True))

  @property
  def number(self) -> int:
    return math.prod(self.numbers)

  @property
  def padded(self) -> tuple[int, ...]:
    """Sides of the grid filled up to whole windows."""
    return tuple(n * window for n, window in zip(self.numbers, self.sides, strict=True))

  def split(self, x: Float[Array, 'batch length d_model']) -> Float[Array, 'rows tokens d_model']:
    """Returns the windows of each row of the batch as rows."""
    axes = tuple(range(1, 1 + len(self.grid)))
    x = x.reshape(len(x), *self.grid, -1)
    filling = [(0, full - side) for full, side in zip(self.padded, self.grid, strict=True)]
    x = jnp.pad(x, [(0, 0), *filling, (0, 0)])
    x = jnp.roll(x, [-shift for shift in self.shifts], axes)
    return self._windows(x).reshape(-1, math.prod(self.sides), x.shape[-1])

  def join(self, rows: Float[Array, 'rows tokens d_model']) -> Float[Array, 'batch length d_model']:
    """Returns the rows of the batch from their windows, the inverse of `split`."""
    count, width = len(self.grid), rows.shape[-1]
    x = rows.reshape(-1, *self.numbers, *self.sides, width)
    order = [axis for i in range(count) for axis in (1 + i, 1 + count + i)]
    x = x.transpose(0, *order, 1 + 2 * count).reshape(-1, *self.padded, width)
    x = jnp.roll(x, self.shifts, tuple(range(1, 1 + count)))
    x = x[(slice(None), *(slice(side) for side in self.grid))]
    return x.reshape(len(x), -1, width)

  def between_all(
    self, probabilities: Float[Array, 'rows heads tokens tokens']
  ) -> Float[Array, 'batch heads length length']:
    """Returns probabilities between all tokens of the grid from those in its windows."""
    length, places = math.prod(self.grid), self.places()
    _, heads, size, _ = probabilities.shape
    own = probabilities.reshape(-1, self.number, heads, size, size).swapaxes(1, 2)
    result = jnp.zeros((len(own), heads, length + 1, length + 1), own.dtype)
    result = result.at[:, :, places[:, :, None], places[:, None, :]].set(own)
    return result[:, :, :length, :length]

  def places(self) -> Int[np.ndarray, 'windows tokens']:
    """Returns the grid index of the tokens of each window; for zeros that fill up the grid, its number of tokens."""
    length = math.prod(self.grid)
    filling = [(0, full - side) for full, side in zip(self.padded, self.grid, strict=True)]
    places = np.pad(np.arange(length).reshape(self.grid), filling, constant_values=length)
    places = np.roll(places, [-shift for shift in self.shifts], range(len(self.grid)))
    return self._windows(places[None]).reshape(self.number, -1)

  def _windows(self, x: AnyArray) -> AnyArray:
    """Reshapes [batch, *padded, ...] to [batch, *numbers, *sides, ...], for arrays of JAX or NumPy."""
    count = len(self.grid)
    pairs = [n for pair in zip(self.numbers, self.sides, strict=True) for n in pair]
    x = x.reshape(len(x), *pairs, *x.shape[1 + count :])
    first, second = range(1, 1 + 2 * count, 2), range(2, 2 + 2 * count, 2)
    return x.transpose(0, *first, *second, *range(1 + 2 * count, x.ndim))

  def segments(self) -> Int[np.ndarray, 'windows tokens'] | None:
    """Returns the segments of the tokens of each window: wrapped tokens form separate segments; None: one segment."""
    if not any(self.shifts):
      return None
    segments = np.ones((1, *self.padded), np.int32)
    for i, (full, shift) in enumerate(zip(self.padded, self.shifts, strict=True)):
      is_wrapped = np.arange(full) >= full - shift
      segments += np.expand_dims(is_wrapped << i, [a for a in range(segments.ndim) if a != 1 + i])
    return self._windows(segments).reshape(self.number, -1)
