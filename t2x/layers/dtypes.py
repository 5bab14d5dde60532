"""The dtype of each kind of array in a training run, and reads of parameters whose gradients are
summed in float32."""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class Dtypes:
  """The dtype policy of a run. `compute` is `Trainer.compute_dtype`; all others are fixed.

  Attributes:
    compute: activations, operands and results of matrix products (which accumulate in float32),
      the keys and values of kernels, and the copy of the parameters that a step computes with.
    parameters: the stored parameters, their gradients when they reach the optimizer, and the sums
      over micro-batches. A parameter declared with `param(..., keep_float32=True)` is not cast to
      `compute`, and its layer computes with it in float32: scales and biases of norms, learned
      scalars, tables that are added to attention scores.
    logits: the outputs of a head, the loss and the metrics.
    softmax: attention scores and everything added to them, up to the probabilities.
    reductions: statistics of norms, and the gradient of a parameter that many positions read (a
      lookup or a broadcast): it is summed in float32 and rounded to the dtype of the step's copy once.
    optimizer: the optimizer's state and its updates.
    ema: the moving average of the parameters.
  """

  compute: str = 'float32'
  parameters: ClassVar[str] = 'float32'
  logits: ClassVar[str] = 'float32'
  softmax: ClassVar[str] = 'float32'
  reductions: ClassVar[str] = 'float32'
  optimizer: ClassVar[str] = 'float32'
  ema: ClassVar[str] = 'float32'

  def working(self, keep_float32: bool) -> str:
    """Returns the dtype of the copy of a parameter that a step computes with."""
    return self.parameters if keep_float32 else self.compute

  def __str__(self) -> str:
    rest: dict[str, list[str]] = {}
    for role in ('parameters', 'logits', 'softmax', 'reductions', 'optimizer', 'ema'):
      rest.setdefault(getattr(self, role), []).append('EMA' if role == 'ema' else role)
    roles = '; '.join(f'{", ".join(names)} in {dtype}' for dtype, names in rest.items())
    return f'compute in {self.compute}; {roles}'


def gather(
  table: Float[Array, '...'],
  *indices: Int[Array, '...'],
  axis: int = 0,
  mode: str | None = None,
) -> Float[Array, '...']:
  """`table[indices]`, with a gradient that is summed in float32 and rounded to the table's dtype once.

  A sum of ones in bfloat16 stops at 256, which a frequent token or position exceeds.

  Args:
    table: the table.
    indices: one array per indexed dimension, broadcast against each other.
    axis: the first indexed dimension.
    mode: as in `jnp.ndarray.at[...].get`: 'fill' returns NaN for an index beyond the table.
  """
  shape = jax.ShapeDtypeStruct(table.shape, table.dtype)
  return _gather(axis, mode, shape, table, indices)


def _read(axis: int, mode: str | None, table: Array, indices: tuple[Array, ...]) -> Array:
  return table.at[(*[slice(None)] * axis, *indices)].get(mode=mode)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _gather(
  axis: int,
  mode: str | None,
  shape: jax.ShapeDtypeStruct,
  table: Array,
  indices: tuple[Array, ...],
) -> Array:
  return _read(axis, mode, table, indices)


def _forward(axis: Any, mode: Any, shape: Any, table: Any, indices: Any) -> tuple[Any, Any]:
  return _read(axis, mode, table, indices), indices


def _backward(axis: Any, mode: Any, shape: Any, indices: Any, gradient: Any) -> tuple[Any, Any]:
  wide = jnp.promote_types(shape.dtype, Dtypes.reductions)
  transpose = jax.linear_transpose(
    lambda table: _read(axis, mode, table, indices), jax.ShapeDtypeStruct(shape.shape, wide)
  )
  (total,) = transpose(gradient.astype(wide))
  return total.astype(shape.dtype), None


_gather.defvjp(_forward, _backward)


def with_rank(x: Float[Array, '...'], ndim: int) -> Float[Array, '...']:
  """`x` with dimensions of size 1 before its own, so that it has `ndim` in all: ranks never differ by
  accident."""
  return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def broadcast(x: Float[Array, '...'], shape: tuple[int, ...], dtype: Any) -> Float[Array, '...']:
  """`x` with this shape and dtype, with a gradient that is summed in float32 or wider and rounded to
  the dtype of `x` once."""
  wide = jnp.promote_types(x.dtype, Dtypes.reductions)
  return jnp.broadcast_to(x.astype(wide), shape).astype(dtype)
