"""Per-token metadata, and rows of tables and caches by position."""

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from t2x.base.errors import UserError
from t2x.layers.dtypes import gather

__all__ = ['RowLayout', 'Tokens']


class RowLayout(enum.Enum):
  """Static relation between the positions of a row's tokens and its slots (indices along the length)."""

  CONTIGUOUS = 'positions are slots'
  PACKED = 'within a segment, positions differ as slots do'
  ARBITRARY = 'positions are known at run time only'


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['positions', 'segments', 'coords', 'order', 'marks', 'encoded', 'features'],
  meta_fields=['layout', 'grid', 'num_extra', 'right_padded'],
)
@dataclasses.dataclass(frozen=True)
class Tokens:
  """Per-token metadata: arrays [#batch, length]; the batch dimension is 1 if all rows are equal.

  Attributes:
    positions: index of each token inside its segment, from 0.
    segments: 1, 2, ... for the examples packed into a row, 0 for padding. None: one segment.
    coords: coordinates [#batch, length, dims] of each token (rows and columns of a grid, calendar
      fields), or None.
    order: rank of each token in the order of prediction (permutation language models), or None.
    marks: sets of tokens by name, as booleans, which patterns such as `Prefix()` read.
    layout: static relation between positions and slots, which lets kernels skip tiles of the attention
      matrix. It is set where the tokens are created and never inferred.
    grid: shape of the grid that the tokens fill row by row (patches of an image), or None.
    num_extra: number of tokens before the grid (class or distillation tokens).
    right_padded: static statement that each row is one segment (1) followed by padding (0), so that kernels
      can mask with the number of tokens per row. It is set where the tokens are created.
    encoded: index that position encodings read instead of `positions`, such as the place in a document if the
      documents of a segment are numbered separately, or None. Patterns and kernels do not read it.
    features: arrays [batch, length, ...] by name, which `PositionEncoding.prepare` returns for the hook `scores`.
  """

  # Not annotated with shapes: views and stacked caches have further dimensions, and tree functions put
  # leaves other than arrays into the fields.
  positions: Any
  segments: Any = None
  coords: Any = None
  order: Any = None
  marks: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  layout: RowLayout = RowLayout.ARBITRARY
  grid: tuple[int, ...] | None = None
  num_extra: int = 0
  right_padded: bool = False
  encoded: Any = None
  features: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def encoded_positions(self) -> Any:
    """The index that position encodings read."""
    return self.positions if self.encoded is None else self.encoded

  @property
  def row_segments(self) -> Any:
    """The segments as an int32 array: ones if the tokens are one segment."""
    if self.segments is None:
      return jnp.ones_like(self.positions, jnp.int32)
    return jnp.asarray(self.segments, jnp.int32)

  @property
  def present(self) -> Any:
    """Which tokens are no padding."""
    return self.row_segments != 0

  @classmethod
  def row(cls, length: int, **fields: Any) -> 'Tokens':
    """Returns a CONTIGUOUS row with positions 0 .. length - 1; `fields` are further attributes."""
    return cls(jnp.arange(length)[None], layout=RowLayout.CONTIGUOUS, **fields)

  def as_source(self) -> 'Tokens':
    """Returns the tokens as keys for another sequence: PACKED, which relates tokens of one sequence,
    becomes ARBITRARY."""
    if self.layout is not RowLayout.PACKED:
      return self
    return dataclasses.replace(self, layout=RowLayout.ARBITRARY)


def grid_places(tokens: Tokens) -> tuple[Any, Any, Any]:
  """Returns the index of each token in its grid of rows and columns, negative for tokens before it, its
  row and its column.

  The arrays have the shape and the type of `tokens.positions`.
  """
  assert tokens.grid is not None
  index = tokens.positions - tokens.num_extra
  return index, *divmod(index, tokens.grid[1])


def rows_at(table: Array, index: Array, name: str) -> Array:
  """Returns `table[index]`, without clipping indices that are out of range.

  Args:
    table: [rows, ...].
    index: non-negative integers of any shape.
    name: the setting that determines the number of rows, for the error message.

  Returns:
    The rows; NaN for a traced index that is out of range.

  Raises:
    UserError: a concrete index is out of range.
  """
  if (largest := largest_of(index)) >= len(table):
    raise UserError(f'index {largest} is beyond the {len(table)} rows set by {name}: raise it')
  return gather(table, index, mode='fill')


def largest_of(index: ArrayLike) -> int:
  """Returns the largest of non-negative integers; -1 if they are traced or empty."""
  # In NumPy: inside a traced function, JAX would trace the maximum of a constant.
  return -1 if isinstance(index, jax.core.Tracer) else int(np.asarray(index).max(initial=-1))


def check_slots(count: ArrayLike, num_slots: int) -> None:
  """Raises UserError if the number of tokens in a cache is not traced and above that of its slots."""
  if (largest := largest_of(count)) > num_slots:
    raise UserError(f'a cache with {num_slots} slots cannot hold {largest} tokens: raise num_slots')


def write(buffer: Array, new: Array, start: Int[Array, ''], axis: int) -> Array:
  """Returns `buffer` with `new` written along `axis` from index `start` on.

  If a traced `start` leaves too few indices, the last ones are overwritten, and floats are NaN, so that attention
  to these slots is NaN.

  Raises:
    UserError: `new` is longer than the buffer, or a concrete `start` leaves too few indices.
  """
  length, size = new.shape[axis], buffer.shape[axis]
  check_slots(length, size)
  check_slots(start + length, size)
  if axis and len(buffer) == 1 and buffer.ndim > 2:  # One sequence; see `decode.generate`.
    rest = write(buffer.reshape(buffer.shape[1:]), new.reshape(new.shape[1:]), start, axis - 1)
    return rest.reshape(buffer.shape)
  shape = (*buffer.shape[:axis], length, *buffer.shape[axis + 1 :])
  new = jnp.broadcast_to(new.astype(buffer.dtype), shape)
  if jnp.issubdtype(buffer.dtype, jnp.inexact):
    new = jnp.where(start + length <= size, new, jnp.nan)
  return jax.lax.dynamic_update_slice_in_dim(buffer, new, start, axis)


def to_blocks(x: Array, size: int) -> Array:
  """Reshapes [batch, length, ...] to [batch, blocks, size, ...], padded with zeros at the end."""
  x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size), *[(0, 0)] * (x.ndim - 2)))
  return x.reshape(len(x), -1, size, *x.shape[2:])
