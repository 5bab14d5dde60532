"""Convolution of a grid, and two forms of it that are faster with their gradients on one CPU device.

XLA computes the gradients of a depthwise convolution in many loops over the whole batch there, and those of a
convolution of patches as convolutions with holes. `experiments/speed/README.md` has the measurements.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.layers.dtypes import Dtypes
from t2x.layers.group_convolution import convolution
from t2x.layers.products import on_one_cpu, products

__all__ = []

# Side of the largest kernel whose taps are summed one by one: each is an operation of the program.
_MAX_TAPS = 7


def convolve(
  x: Float[Array, 'batch rows columns d_model'],
  kernel: Float[Array, 'taps taps group_size width'],
  stride: int = 1,
) -> Float[Array, 'batch out_rows out_columns width']:
  """Returns the convolution of the grid with half of an odd kernel of zeros on each side, and none for an even kernel.

  Args:
    x: features of each place; group_size divides their number, and the number of groups that of the outputs.
    kernel: weights of each tap.
    stride: distance between the centres of neighbouring outputs.
  """
  size, _, group_size, width = kernel.shape
  num_features = x.shape[-1]
  around = size // 2 if size % 2 else 0
  if on_one_cpu():
    is_depthwise = group_size == 1 and num_features == width
    if is_depthwise and size % 2 and size <= _MAX_TAPS and stride == 1:
      return _depthwise(x, kernel)
    if group_size == num_features and size == stride and not around:
      return products().project(_patches(x, size), kernel.reshape(-1, width), 1)
  return convolution(x, kernel, stride, around)


def _patches(x: Array, size: int) -> Array:
  """Returns the features of each whole patch, [batch, rows // size, columns // size, size * size * d_model]."""
  rows, columns = (side // size for side in x.shape[1:3])
  x = x[:, : rows * size, : columns * size].reshape(len(x), rows, size, columns, size, -1)
  return x.swapaxes(2, 3).reshape(len(x), rows, columns, -1)


@jax.custom_vjp
def _depthwise(x: Array, kernel: Array) -> Array:
  """Returns the depthwise convolution as a sum over taps, row by row of the batch, so that a row stays in the cache."""
  around, (rows, columns) = len(kernel) // 2, x.shape[1:3]
  kernel = kernel.astype(Dtypes.reductions)

  def convolved(padded: Array) -> Array:
    taps = [
      padded[i : i + rows, j : j + columns].astype(Dtypes.reductions) * kernel[i, j, None]
      for i in range(len(kernel))
      for j in range(len(kernel))
    ]
    return sum(taps[1:], taps[0]).astype(x.dtype)

  return jax.lax.map(convolved, _padded(x, around))


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
  return _depthwise(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
  x, kernel = saved
  size, (rows, columns) = len(kernel), x.shape[1:3]

  def add(total: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
    padded, change = (array.astype(Dtypes.reductions) for array in row)
    sums = [
      (padded[i : i + rows, j : j + columns] * change).sum(axis=(0, 1))
      for i in range(size)
      for j in range(size)
    ]
    return total + jnp.stack(sums), None

  zeros = jnp.zeros((size * size, x.shape[-1]), Dtypes.reductions)
  total, _ = jax.lax.scan(add, zeros, (_padded(x, size // 2), gradient))
  return _depthwise(gradient, kernel[::-1, ::-1]), total.reshape(kernel.shape).astype(kernel.dtype)


def _padded(x: Array, around: int) -> Array:
  return jnp.pad(x, ((0, 0), (around, around), (around, around), (0, 0)))


_depthwise.defvjp(_forward, _backward)
