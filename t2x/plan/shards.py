"""Shardings of the arrays of a traced program, propagated from its inputs to its outputs.

A simplified version of the compiler's propagation (GSPMD, https://arxiv.org/abs/2105.04663): forward only, from the
shardings of the inputs and the constraints of the layers.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from t2x.parallel import as_tuple

# Mesh axes that split each dimension.
Spec = tuple[tuple[str, ...], ...]
Sizes = Mapping[str, int]


def spec_of(sharding: NamedSharding, ndim: int) -> Spec:
  """Returns the mesh axes of each dimension of a NamedSharding."""
  return padded_spec(tuple(sharding.spec), ndim)


def padded_spec(spec: Sequence[Any], ndim: int) -> Spec:
  """Returns the mesh axes of each dimension of a PartitionSpec."""
  return tuple(as_tuple(entry) for entry in (*spec, *(None,) * (ndim - len(spec))))


def parts(spec: Iterable[Sequence[str]], sizes: Sizes) -> int:
  """Returns the number of devices that hold different parts of an array."""
  return math.prod(sizes[axis] for axes in spec for axis in axes)


def flat(spec: Spec) -> tuple[str, ...]:
  """Returns all mesh axes of a spec."""
  return tuple(axis for axes in spec for axis in axes)


def unsplit(ndim: int) -> Spec:
  """Returns the spec of a replicated array."""
  return ((),) * ndim


def without(spec: Spec, used: Iterable[str]) -> Spec:
  """Returns the spec without some mesh axes."""
  used = set(used)
  return tuple(tuple(axis for axis in axes if axis not in used) for axes in spec)


def merged(specs: Sequence[Spec], ndim: int) -> Spec:
  """Returns the spec of an elementwise operation; earlier operands win, and an axis splits one dimension."""
  result: list[tuple[str, ...]] = [()] * ndim
  used: set[str] = set()
  for spec in specs:
    for place, axes in enumerate(spec):
      free = tuple(axis for axis in axes if axis not in used)
      if not result[place] and free:
        result[place] = free
        used.update(free)
  return tuple(result)


def reshaped(shape: Sequence[int], spec: Spec, new: Sequence[int], sizes: Sizes) -> Spec:
  """Returns the spec after a reshape: the axes of a split or merged dimension stay with its major part."""
  result: list[tuple[str, ...]] = [()] * len(new)
  at = place = 0
  while at < len(shape) and place < len(new):
    start, first = at, place
    size, other = shape[at], new[place]
    while size != other:
      if size < other:
        at += 1
        size *= shape[at]
      else:
        place += 1
        other *= new[place]
    axes = next((spec[i] for i in range(start, at + 1) if shape[i] > 1), ())
    target = next((i for i in range(first, place + 1) if new[i] > 1), first)
    if axes and new[target] % parts([axes], sizes) == 0:
      result[target] = axes
    at, place = at + 1, place + 1
  return tuple(result)


def dot_spec(
  lhs: Spec, rhs: Spec, dimension_numbers: jax.lax.DotDimensionNumbers
) -> tuple[Spec, tuple[str, ...]]:
  """Returns the spec of a product, and the mesh axes over which its parts must be summed.

  The first operand wins where both are split over the same axis along different dimensions.
  """
  (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = dimension_numbers
  summed: list[str] = []
  for i, j in zip(lhs_contracted, rhs_contracted, strict=True):
    summed += [axis for axis in lhs[i] if axis not in summed]
    outside = {
      axis for place, axes in enumerate(lhs) if place not in lhs_contracted for axis in axes
    }
    summed += [axis for axis in rhs[j] if axis not in summed and axis not in outside]
  result = [merged([(lhs[i],), (rhs[j],)], 1)[0] for i, j in zip(lhs_batch, rhs_batch, strict=True)]
  result += [axes for i, axes in enumerate(lhs) if i not in (*lhs_contracted, *lhs_batch)]
  result += [axes for j, axes in enumerate(rhs) if j not in (*rhs_contracted, *rhs_batch)]
  return once(result, summed), tuple(summed)


def grouped_spec(
  lhs: Spec, rhs: Spec, numbers: jax.lax.RaggedDotDimensionNumbers
) -> tuple[Spec, tuple[str, ...]]:
  """Returns the spec of a grouped product (`jax.lax.ragged_dot`), and the mesh axes over which its parts are summed."""
  (lhs_contracted, rhs_contracted), batch = numbers.dot_dimension_numbers
  groups = tuple(numbers.rhs_group_dimensions)
  # The dimension of the groups has no counterpart in the rows, as a contracted dimension of the matrices.
  rest = tuple(axes for i, axes in enumerate(rhs) if i not in groups)
  places = [j - sum(g < j for g in groups) for j in rhs_contracted]
  spec, summed = dot_spec(lhs, rest, ((lhs_contracted, places), batch))
  # Without groups, the rows are contracted within each group, which becomes the first dimension.
  return (spec if groups else ((), *spec)), summed


def once(spec: Iterable[tuple[str, ...]], used: Iterable[str]) -> Spec:
  """Keeps the first use of each mesh axis that is not in `used`."""
  taken, result = set(used), []
  for axes in spec:
    result.append(tuple(axis for axis in axes if axis not in taken))
    taken.update(axes)
  return tuple(result)


def gather_spec(
  operand: Spec, indices: Spec, params: Mapping[str, Any], shape: Sequence[int]
) -> Spec:
  """Returns the spec of a gather from an operand of `shape`."""
  numbers, slices = params['dimension_numbers'], params['slice_sizes']
  skipped = (*numbers.collapsed_slice_dims, *getattr(numbers, 'operand_batching_dims', ()))
  sizes_of_slices = [
    axes if slices[i] == shape[i] else () for i, axes in enumerate(operand) if i not in skipped
  ]
  count = len(numbers.offset_dims) + len(indices) - 1
  rows, columns = iter(indices[:-1]), iter(sizes_of_slices)
  result = [next(columns if i in numbers.offset_dims else rows) for i in range(count)]
  return once(result, ())


# Specs of one-operand primitives whose output has other dimensions: (spec, shape, new shape, params, sizes) -> spec.
RULES: dict[str, Callable[[Spec, Any, Any, Mapping[str, Any], Sizes], Spec]] = {
  'reshape': lambda spec, shape, new, params, sizes: reshaped(shape, spec, new, sizes),
  'transpose': lambda spec, shape, new, params, sizes: tuple(
    spec[i] for i in params['permutation']
  ),
  'squeeze': lambda spec, shape, new, params, sizes: tuple(
    axes for i, axes in enumerate(spec) if i not in params['dimensions']
  ),
  'broadcast_in_dim': lambda spec, shape, new, params, sizes: tuple(
    spec[params['broadcast_dimensions'].index(i)]
    if i in params['broadcast_dimensions'] and shape[params['broadcast_dimensions'].index(i)] == n
    else ()
    for i, n in enumerate(new)
  ),
}


def reduced(spec: Spec, axes: Iterable[int]) -> tuple[Spec, tuple[str, ...]]:
  """Returns the spec of a reduction, and the mesh axes over which its parts must be combined."""
  axes = set(axes)
  rest = tuple(names for i, names in enumerate(spec) if i not in axes)
  return rest, tuple(axis for i in sorted(axes) for axis in spec[i])


def same_sizes(shape: Sequence[int], spec: Spec, new: Sequence[int]) -> Spec:
  """Returns the spec of an array with the same dimensions, some of which have another size."""
  return tuple(axes if n == m else () for axes, n, m in zip(spec, shape, new, strict=True))
