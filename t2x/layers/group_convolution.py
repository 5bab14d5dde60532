"""Grouped convolution over any number of dimensions, with correct gradients on several devices."""

import jax
from jaxtyping import Array, Float

from t2x.layers.constraints import map_shards

__all__ = []


def convolution(
  x: Float[Array, 'batch *sides features'],
  kernel: Float[Array, '*taps group_size width'],
  stride: int = 1,
  around: int = 0,
  axis: str | None = None,
) -> Float[Array, 'batch *out_sides width']:
  """Returns the convolution with zero padding on each side.

  Each device convolves its own rows, and the compiler splits only convolutions of one group. XLA's partitioner would
  sum the gradient of a grouped kernel over all devices, including devices with equal rows, so that the gradient would
  be too large by the number of copies (jax 0.10.2 and 0.12.0, on meshes with two axes).

  Args:
    x: features at each place; group_size divides `features`, and the number of groups divides `width`.
    kernel: weights of each tap.
    stride: distance between the centres of neighbouring outputs.
    around: number of zeros on each side.
    axis: logical axis of the features, for kernels of group_size 1; None: the features are not split.
  """
  num_sides = x.ndim - 2
  num_groups = x.shape[-1] // kernel.shape[-2]
  letters = 'HW'[-num_sides:]

  def local(x: Array, kernel: Array) -> Array:
    return jax.lax.conv_general_dilated(
      x,
      kernel,
      (stride,) * num_sides,
      [(around, around)] * num_sides,
      dimension_numbers=(f'N{letters}C', f'{letters}IO', f'N{letters}C'),
      feature_group_count=x.shape[-1] // kernel.shape[-2],
    )

  if num_groups == 1:
    return local(x, kernel)
  rows = ('batch', *(None,) * num_sides, axis)
  return map_shards(local, (rows, (*(None,) * (num_sides + 1), axis)), rows)(x, kernel)
