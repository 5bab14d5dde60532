"""Convolution over any number of dimensions, whose groups of features have correct gradients on several devices."""

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
  """Returns the convolution with zeros around each side.

  XLA's partitioner sums the gradient of a kernel with several groups over all devices, also over those that have equal
  rows: it is too large by the number of copies (jax 0.10.2 and 0.12.0, on meshes with two axes). So each device convolves its
  own rows, and the compiler splits only convolutions of one group.

  Args:
    x: features of each place; group_size divides their number, and the number of groups that of the outputs.
    kernel: weights of each tap.
    stride: distance between the centres of neighbouring outputs.
    around: number of zeros on each side.
    axis: logical axis of the features, for kernels of group_size 1; None: they are not split.
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
