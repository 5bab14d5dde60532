"""Building blocks of layers: parameters with logical axes, projections, dropout, and per-token metadata."""

import dataclasses
import enum
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Tunable, scalar
from t2x.layers.constraints import num_parts
from t2x.layers.dtypes import broadcast, gather
from t2x.layers.initializers import build_context
from t2x.layers.keys import NamedRngs, bernoulli, initial_value
from t2x.layers.products import project

__all__ = ['Initializer', 'Linear', 'RowLayout', 'Tokens', 'dropout', 'param']

Initializer = Callable[..., Array]
Key = Array
Kind = Literal['matrix', 'table', 'filter', 'vector', 'scalar', 'identity']


class RowLayout(enum.Enum):
  """Static relation between the positions of a row's tokens and its slots (indices along the length)."""

  CONTIGUOUS = 'positions are slots'
  PACKED = 'within a segment, positions differ as slots do'
  ARBITRARY = 'positions are known at run time only'


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['positions', 'segments', 'coords', 'order', 'marks', 'encoded'],
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

  @property
  def encoded_positions(self) -> Any:
    """The index that position encodings read."""
    return self.positions if self.encoded is None else self.encoded

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

  def as_queries(self) -> 'Tokens':
    """Returns a view with arrays [#batch, length, 1, ...], which broadcast against `as_keys`."""
    return jax.tree.map(lambda x: x[:, :, None], self)

  def as_keys(self) -> 'Tokens':
    """Returns a view with arrays [#batch, 1, length, ...]."""
    return jax.tree.map(lambda x: x[:, None], self)


def param(
  init: Initializer,
  shape: Sequence[int],
  axes: Sequence[str | None],
  rngs: nnx.Rngs,
  *,
  kind: Kind | None = None,
  matrix: tuple[int, int] | None = None,
  keep_float32: bool = False,
) -> nnx.Param:
  """Creates a float32 parameter annotated with what it is; nothing else decides how it is trained.

  | kind | parameters | weight decay | Muon |
  |---|---|---|---|
  | matrix | maps hidden vectors to hidden vectors | yes | orthogonalised |
  | table | rows that are looked up: embeddings, positions, relative biases, projections to a vocabulary or classes | yes | Adam |
  | filter | kernels over neighbouring tokens or pixels, maps over the length | yes | Adam |
  | vector | added to or multiplied with features: biases, norms, null keys, prompts, centroids | no | Adam |
  | scalar | a single number | no | Adam |
  | identity | starts as a neutral element, which decay would destroy: mixtures of streams or heads | no | Adam |

  Vectors per head (Transformer-XL's u and v, null keys and values, the w of additive scores) stay vectors: their
  published code has one vector or does not decay them. Class tokens and prompts are not decayed (DeiT).

  Inside `initialized` the random key of the initial value is derived from the parameter's name, elsewhere
  it is the next key of `rngs`. The leading dimensions of `stacked` are not in `axes`.

  Args:
    init: initialiser.
    shape: shape of the parameter.
    axes: logical name of each dimension, or None.
    rngs: random keys.
    kind: one of the table. None: 'matrix', which needs `matrix`.
    matrix: (inputs, outputs) of a matrix that multiplies hidden vectors, with which the initialiser is called. If
      the parameter is larger, it is several matrices, each with a key of its own. None: not such a matrix.
    keep_float32: whether a step computes with the parameter in float32 instead of casting it to the compute
      dtype (see `Dtypes`).

  Raises:
    ValueError: `axes` do not fit the shape, `kind` is missing or unknown, or a matrix has no `matrix`.
  """
  kind = _kind_of(shape, axes, kind, matrix)
  metadata: dict[str, Any] = {}
  if isinstance(rngs, NamedRngs):
    value, metadata = rngs.draw(init, tuple(shape), tuple(axes), matrix)
  else:
    value = initial_value(init, rngs.params(), tuple(shape), matrix)
  return nnx.Param(
    value,
    axes=tuple(axes),
    kind=kind,
    matrix=matrix,
    layers=build_context().layers,
    keep_float32=keep_float32,
    **metadata,
  )


def _kind_of(
  shape: Sequence[int],
  axes: Sequence[str | None],
  kind: Kind | None,
  matrix: tuple[int, int] | None,
) -> Kind:
  """Returns the kind of a parameter; see `param`."""
  call, kinds = f'param(shape={tuple(shape)}, axes={tuple(axes)})', get_args(Kind)
  if len(axes) != len(shape):
    raise ValueError(f'{call}: axes must name each dimension of the shape')
  if kind is None and matrix is None:
    raise ValueError(f'{call} has no kind: set kind to one of {", ".join(kinds)}')
  if kind is not None and kind not in kinds:
    raise ValueError(f'{call}: kind {kind!r} must be one of {", ".join(kinds)}')
  if kind == 'matrix' and matrix is None:
    raise ValueError(f"{call} of kind 'matrix' needs matrix=(inputs, outputs)")
  return kind or 'matrix'


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


def largest_of(index: Any) -> int:
  """Returns the largest of non-negative integers; -1 if they are traced or empty."""
  # In NumPy: inside a traced function, JAX would trace the maximum of a constant.
  return -1 if isinstance(index, jax.core.Tracer) else int(np.asarray(index).max(initial=-1))


def check_slots(count: Any, num_slots: int) -> None:
  """Raises UserError if the number of tokens in a cache is not traced and above that of its slots."""
  if (largest := largest_of(count)) > num_slots:
    raise UserError(f'a cache with {num_slots} slots cannot hold {largest} tokens: raise num_slots')


def write(buffer: Any, new: Array, start: Int[Array, ''], axis: int) -> Array:
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


def keep_probability(rate: Tunable) -> Float[Array, '']:
  """Returns 1 - rate in float32. The rate is rounded first, so that the same elements are dropped whether
  it is a constant or an input of the step."""
  return 1.0 - jnp.asarray(scalar(rate), jnp.float32)


def dropout(
  x: Float[Array, '#batch *rest'], rate: Tunable, key: Key | None
) -> Float[Array, 'batch *rest']:
  """Zeroes elements with probability `rate` and scales the rest by 1 / (1 - rate).

  Args:
    x: the elements. What all rows share, with a first dimension of 1, is dropped for each row.
    rate: the probability.
    key: one key per row [batch], or one key [] for the whole array; None: no dropout.
  """
  if key is None or rate == 0.0:
    return x
  probability = keep_probability(rate)
  keep = bernoulli(key, probability, x.shape)
  return jnp.where(keep, x / probability.astype(x.dtype), 0)


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
  """Linear projection of the last dimensions: [..., *inputs] -> [..., *outputs].

  The initialiser is called with the shape [prod(inputs), prod(outputs)], so that fan-in and fan-out do not
  depend on how the dimensions are split into heads. `kind` is that of the kernel; see `param`.
  """

  def __init__(
    self,
    inputs: Sequence[int],
    outputs: Sequence[int],
    axes: Sequence[str | None],
    *,
    init: Initializer,
    use_bias: bool = True,
    kind: Kind = 'matrix',
    rngs: nnx.Rngs,
  ):
    self.num_inputs = len(inputs)
    matrix = math.prod(inputs), math.prod(outputs)
    self.kernel = param(init, (*inputs, *outputs), axes, rngs, kind=kind, matrix=matrix)
    zeros, bias_axes = nnx.initializers.zeros, axes[len(inputs) :]
    self.bias = param(zeros, outputs, bias_axes, rngs, kind='vector') if use_bias else None

  def __call__(self, x: Float[Array, '...']) -> Float[Array, '...']:
    kernel = self.kernel[...].astype(x.dtype)
    y = project(flatten_rows(x, self.num_inputs), kernel, self.num_inputs)
    if self.bias is not None:
      y = y + broadcast(self.bias[...], y.shape, y.dtype)
    return y.reshape(*x.shape[: x.ndim - self.num_inputs], *kernel.shape[self.num_inputs :])


def with_defaults(constructor: Callable[..., None], **defaults: Any) -> Any:
  """Returns a constructor with other default values of settings, for a subclass that differs in them only."""

  @functools.wraps(constructor)
  def replaced(self, *args, **settings):
    constructor(self, *args, **{**defaults, **settings})

  result: Any = replaced
  signature = inspect.signature(constructor)
  parameters = [
    p.replace(default=defaults.get(p.name, p.default)) for p in signature.parameters.values()
  ]
  result.__signature__ = signature.replace(parameters=parameters)
  return result
