"""What every layer is made of: parameters with logical axes, projections, dropout, and what is
known of a token beside its vector."""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.hyperparameters import Tunable, scalar
from t2x.layers.constraints import num_parts
from t2x.layers.dtypes import Dtypes, broadcast, gather
from t2x.layers.keys import NamedRngs

Initializer = Callable[..., Array]
Key = Array


class RowLayout(enum.Enum):
  """How the positions of a row relate to its slots (indices along the length)."""

  CONTIGUOUS = 'positions are slots'
  PACKED = 'within a segment, positions differ as slots do'
  ARBITRARY = 'positions are known at run time only'


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['positions', 'segments', 'coords', 'order', 'marks'],
  meta_fields=['layout', 'grid', 'num_extra'],
)
@dataclasses.dataclass(frozen=True)
class Tokens:
  """Per-token metadata: arrays [#batch, length], the batch being 1 where all rows are alike.

  Attributes:
    positions: index of each token inside its segment, from 0.
    segments: 1, 2, ... for the examples packed into a row, 0 for padding. None: one segment.
    coords: coordinates [#batch, length, dims] of each token (rows and columns of a grid, calendar
      fields), or None.
    order: rank of each token in the order of prediction (permutation language models), or None.
    marks: sets of tokens by name, as booleans, which patterns such as `Prefix()` read.
    layout: the static relation between positions and slots, by which kernels skip tiles of the attention
      matrix. It is set where the tokens are created and never inferred.
    grid: shape of the grid that the tokens fill row by row (patches of an image), or None.
    num_extra: tokens before the grid (class or distillation tokens).
  """

  # Not annotated with shapes: views have further dimensions, stacked caches too, and tree functions
  # put other things than arrays into the fields.
  positions: Any
  segments: Any = None
  coords: Any = None
  order: Any = None
  marks: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  layout: RowLayout = RowLayout.ARBITRARY
  grid: tuple[int, ...] | None = None
  num_extra: int = 0

  @classmethod
  def row(cls, length: int, **fields: Any) -> 'Tokens':
    """A CONTIGUOUS row with positions 0 .. length - 1; `fields` are further attributes."""
    return cls(jnp.arange(length)[None], layout=RowLayout.CONTIGUOUS, **fields)

  def elsewhere(self) -> 'Tokens':
    """The same for another sequence: without PACKED, which holds between tokens of one sequence only."""
    if self.layout is not RowLayout.PACKED:
      return self
    return dataclasses.replace(self, layout=RowLayout.ARBITRARY)

  def as_queries(self) -> 'Tokens':
    """A view with arrays [#batch, length, 1, ...], which broadcasts against `as_keys` of others."""
    return jax.tree.map(lambda x: x[:, :, None], self)

  def as_keys(self) -> 'Tokens':
    """A view with arrays [#batch, 1, length, ...]."""
    return jax.tree.map(lambda x: x[:, None], self)


def param(
  init: Initializer,
  shape: Sequence[int],
  axes: Sequence[str | None],
  rngs: nnx.Rngs,
  *,
  keep_float32: bool = False,
) -> nnx.Param:
  """A float32 parameter that carries its logical axes.

  Stacked layers have one more leading dimension than `axes` has names: it is 'layers'. With
  `keep_float32` a step does not cast it to the compute dtype (see `Dtypes`). Inside `initialized` its
  initial value is drawn by name, else with the next key of `rngs`.
  """
  if len(axes) != len(shape):
    raise ValueError(f'axes {tuple(axes)} do not name the dimensions of shape {tuple(shape)}')
  metadata: dict[str, Any] = {}
  if isinstance(rngs, NamedRngs):
    value, metadata = rngs.draw(init, tuple(shape))
  else:
    value = init(rngs.params(), tuple(shape), Dtypes.parameters)
  return nnx.Param(value, axes=tuple(axes), keep_float32=keep_float32, **metadata)


def rows_at(table: Array, index: Array, name: str) -> Array:
  """`table[index]`, never another row than the one asked for.

  Args:
    table: [rows, ...].
    index: non-negative integers of any shape.
    name: the parameter that sets the number of rows, for the message.

  Returns:
    The rows; NaN for an index beyond the table that is known only at run time.

  Raises:
    UserError: an index beyond the table that is known already.
  """
  if not isinstance(index, jax.core.Tracer):
    # In NumPy: inside a traced function, JAX would trace the maximum of a constant.
    largest = np.asarray(index).max(initial=-1)
    if largest >= len(table):
      raise UserError(f'index {largest} is beyond the {len(table)} rows that {name} gives')
  return gather(table, index, mode='fill')


def kept_share(rate: Tunable) -> Float[Array, '']:
  """1 - rate in float32. The rate is rounded first, so that the same elements are dropped whether it
  is a constant or an input of the step."""
  return 1.0 - jnp.asarray(scalar(rate), jnp.float32)


def dropout(x: Float[Array, '*shape'], rate: Tunable, key: Key | None) -> Float[Array, '*shape']:
  """Zeroes elements with probability `rate` and scales the rest by 1 / (1 - rate)."""
  if key is None or rate == 0.0:
    return x
  share = kept_share(rate)
  keep = jax.random.bernoulli(key, share, x.shape)
  return jnp.where(keep, x / share.astype(x.dtype), 0)


def flatten_rows(x: Array, num_inputs: int = 1) -> Array:
  """Merges the leading dimensions of the input of a product: [..., *inputs] -> [rows, *inputs].

  XLA's CPU backend computes the gradient of a kernel over several leading dimensions through a transposed copy
  of the input. Where rows are split over devices along their length, merging would move data: the shape stays.
  """
  rows = x.shape[: x.ndim - num_inputs]
  if len(rows) < 2 or num_parts('length') > 1:
    return x
  return x.reshape(math.prod(rows), *x.shape[x.ndim - num_inputs :])


class Linear(nnx.Module):
  """A projection of the last dimensions: [..., *inputs] -> [..., *outputs].

  The initializer sees the two-dimensional matrix [prod(inputs), prod(outputs)], so that fan-in and
  fan-out are those of the projection whatever the shape of its heads.
  """

  def __init__(
    self,
    inputs: Sequence[int],
    outputs: Sequence[int],
    axes: Sequence[str | None],
    *,
    init: Initializer,
    use_bias: bool = True,
    rngs: nnx.Rngs,
  ):
    self.num_inputs = len(inputs)

    def init_matrix(key, shape, dtype):
      return init(key, (math.prod(inputs), math.prod(outputs)), dtype).reshape(shape)

    self.kernel = param(init_matrix, (*inputs, *outputs), axes, rngs)
    zeros = nnx.initializers.zeros
    self.bias = param(zeros, outputs, axes[len(inputs) :], rngs) if use_bias else None

  def __call__(self, x: Float[Array, '...']) -> Float[Array, '...']:
    kernel = self.kernel[...].astype(x.dtype)
    rows, inputs = x.shape[: x.ndim - self.num_inputs], x.shape[x.ndim - self.num_inputs :]
    flat = flatten_rows(x, self.num_inputs)
    first = flat.ndim - self.num_inputs
    contracted = tuple(range(first, flat.ndim)), tuple(range(len(inputs)))
    y = jax.lax.dot_general(flat, kernel, (contracted, ((), ())))
    y = y.reshape(*rows, *y.shape[first:])
    if self.bias is not None:
      y = y + broadcast(self.bias[...], y.shape, y.dtype)
    return y
