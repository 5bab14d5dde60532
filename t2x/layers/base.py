"""What every layer is made of: parameters with logical axes, projections, dropout, and what is
known of a token beside its vector."""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.errors import UserError
from t2x.hyperparameters import Tunable, scalar
from t2x.layers.keys import NamedRngs

__all__ = [
  'Context',
  'Linear',
  'RowLayout',
  'Tokens',
  'dropout',
  'kept_share',
  'param',
  'rows_at',
]

Initializer = Callable[..., Array]
Key = Array


class RowLayout(enum.Enum):
  """How the positions of a row relate to its slots (indices along the length)."""

  CONTIGUOUS = 'positions are slots'
  PACKED = 'within a segment, positions differ as slots do'
  ARBITRARY = 'positions are known at run time only'


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['positions', 'segments', 'prefix'],
  meta_fields=['layout'],
)
@dataclasses.dataclass(frozen=True)
class Tokens:
  """Per-token metadata. Every array may be None.

  Attributes:
    positions: index of each token inside its segment, from 0. None: 0 .. length - 1.
    segments: 1, 2, ... for the examples packed into a row, 0 for padding. None: one segment.
    prefix: True where the pattern `Prefix()` lets every query see the token.
    layout: what is static about `positions`; kernels skip tiles of the attention matrix by it. PACKED is
      stated by whoever packs the rows. None: CONTIGUOUS without positions, else ARBITRARY.
  """

  positions: Int[Array, '#batch length'] | None = None
  segments: Int[Array, '#batch length'] | None = None
  prefix: Bool[Array, '#batch length'] | None = None
  layout: RowLayout | None = None

  def index(self, length: int) -> Int[Array, '#batch length']:
    """The positions, counted from 0 where none were given."""
    return jnp.arange(length)[None] if self.positions is None else self.positions


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
  """What cross-attention reads: vectors and tokens of another sequence."""

  x: Float[Array, 'batch source d_model']
  tokens: Tokens = dataclasses.field(default_factory=Tokens)

  def elsewhere(self) -> 'Context':
    """The same without PACKED, which holds between tokens of one sequence only."""
    return dataclasses.replace(self, tokens=dataclasses.replace(self.tokens, layout=None))


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
  `keep_float32` it is not rounded to the compute type of a step. Inside `initialized` its initial
  value is drawn by name, else with the next key of `rngs`.
  """
  if len(axes) != len(shape):
    raise ValueError(f'axes {tuple(axes)} do not name the dimensions of shape {tuple(shape)}')
  metadata: dict[str, Any] = {}
  if isinstance(rngs, NamedRngs):
    value, metadata = rngs.draw(init, tuple(shape))
  else:
    value = init(rngs.params(), tuple(shape), jnp.float32)
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
  return table.at[index].get(mode='fill', fill_value=jnp.nan)


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
    contracted = tuple(range(x.ndim - self.num_inputs, x.ndim)), tuple(range(self.num_inputs))
    y = jax.lax.dot_general(x, kernel, (contracted, ((), ())))
    if self.bias is not None:
      y = y + self.bias[...].astype(x.dtype)
    return y
