"""Specs of the outputs of an equation, its FLOPs on one device, and which operations XLA fuses."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn
from jax.sharding import NamedSharding, PartitionSpec

from t2x.layers.counting import share_of
from t2x.parallel import as_tuple
from t2x.parallel.mesh import BATCH_AXES
from t2x.plan.arrays import Array
from t2x.plan.shards import (
  RULES,
  Sizes,
  Spec,
  dot_spec,
  flat,
  gather_spec,
  grouped_spec,
  merged,
  once,
  parts,
  reduced,
  same_sizes,
  unsplit,
  without,
)
from t2x.train.logs.flops import grouped_multiply_adds

# Mesh axes that split the tokens of a batch.
ROW_AXES = {*BATCH_AXES, 'context'}
SCATTERS = ('scatter', 'scatter-add', 'scatter_add', 'scatter-mul', 'scatter_mul')
# Collectives of mapped functions -> their kind.
COLLECTIVES = {
  'all_gather': 'all-gather',
  'ppermute': 'collective-permute',
  'psum': 'all-reduce',
  'reduce_scatter': 'reduce-scatter',
}
# Product of each row with the matrix of its group, as in mixtures of experts.
GROUPED = 'ragged_dot_general'
# Kernels of Pallas, with the FLOPs that they state.
KERNEL = 'pallas_call'
PRODUCTS = ('dot_general', 'conv_general_dilated', GROUPED, KERNEL)
# Operations whose operands and results are in memory.
HEAVY = (
  'cholesky',
  'conv_general_dilated',
  'cumlogsumexp',
  'cummax',
  'cumprod',
  'cumsum',
  'dot_general',
  'eigh',
  'gather',
  *COLLECTIVES,
  GROUPED,
  KERNEL,
  *SCATTERS,
  'sort',
  'top_k',
  'triangular_solve',
)
# Elementwise operations that XLA does not repeat in each operation that reads them.
EXPENSIVE = ('erf', 'exp', 'log', 'logistic', 'tanh')


def output_specs(
  name: str, equation: JaxprEqn, inputs: Sequence[Array], sizes: Sizes
) -> tuple[list[Spec], tuple[str, ...]]:
  """Returns the spec of each output, and the mesh axes over which its parts are summed."""
  params = equation.params
  shapes = [tuple(cast(ShapedArray, v.aval).shape) for v in equation.outvars]
  if name == 'dot_general':
    spec, summed = dot_spec(inputs[0].spec, inputs[1].spec, params['dimension_numbers'])
    return [spec], summed
  if name == GROUPED:
    numbers = params['ragged_dot_dimension_numbers']
    spec, summed = grouped_spec(inputs[0].spec, inputs[1].spec, numbers)
    return [spec], summed
  if name == 'sharding_constraint':
    return [constrained(params['sharding'], inputs[0])], ()
  if name in RULES:
    first = inputs[0]
    return [RULES[name](first.spec, first.shape, shapes[0], params, sizes)], ()
  if name == 'gather':
    first, indices = inputs[:2]
    return [gather_spec(first.spec, indices.spec, params, first.shape)], ()
  if name == 'dynamic_update_slice':
    first, update = inputs[:2]
    return [
      merged([first.spec, same_sizes(update.shape, update.spec, first.shape)], len(first.shape))
    ], ()
  if name in SCATTERS:
    return _scattered(params['dimension_numbers'], *(a.spec for a in inputs[:3]))
  if name.startswith(('reduce_', 'arg')) and 'axes' in params:
    spec, summed = reduced(inputs[0].spec, params['axes'])
    return [spec] * len(shapes), summed
  ordered = sorted(inputs, key=lambda a: (not a.from_batch, -a.size))
  return [_elementwise(ordered, shape) for shape in shapes], ()


def product_flops(
  equation: JaxprEqn, result: Array, inputs: Sequence[Array], summed: tuple[str, ...], sizes: Sizes
) -> int:
  """Returns the FLOPs of a matrix product or convolution on one device, 2 per multiply-add."""
  used = share_of(str(equation.source_info.name_stack))
  if equation.primitive.name == KERNEL:
    cost = equation.params['cost_estimate']
    return 0 if cost is None else int(used * cost.flops)
  if equation.primitive.name == GROUPED:
    split = parts([*result.spec, summed], sizes)
    return int(2 * used * grouped_multiply_adds(equation)) // split
  local = result.size // parts(result.spec, sizes)
  if equation.primitive.name == 'dot_general':
    (contracted, _), _ = equation.params['dimension_numbers']
    depth = math.prod(inputs[0].shape[i] for i in contracted)
  else:
    kernel = inputs[1].shape
    depth = inputs[1].size // kernel[equation.params['dimension_numbers'].rhs_spec[0]]
  return 2 * local * depth // parts([summed], sizes)


def _elementwise(inputs: Sequence[Array], shape: tuple[int, ...]) -> Spec:
  same = [a.spec for a in inputs if a.shape == shape]
  if same:
    return merged(same, len(shape))
  close = [a for a in inputs if len(a.shape) == len(shape)]
  if close:
    return same_sizes(close[0].shape, close[0].spec, shape)
  rows = [a.spec[0] for a in inputs if a.shape[:1] == shape[:1] and shape]
  return (rows[0], *unsplit(len(shape) - 1)) if rows else unsplit(len(shape))


def _scattered(
  numbers: jax.lax.ScatterDimensionNumbers, operand: Spec, indices: Spec, updates: Spec
) -> tuple[list[Spec], tuple[str, ...]]:
  """Returns the spec of a scatter, and the mesh axes over which its parts are summed."""
  spec = list(operand)
  pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
  for i, j in pairs:
    spec[i] = indices[j]
  result = once(spec, ())
  summed = tuple(x for x in flat(updates) if x not in flat(result) and x in ROW_AXES)
  return [result], summed


def num_groups(equation: JaxprEqn) -> int:
  """Returns the number of groups of a product; 1 for a product without groups."""
  if equation.primitive.name != GROUPED:
    return 1
  return cast(ShapedArray, equation.invars[2].aval).shape[-1]


def matching_axes(
  name: str, params: Mapping[str, Any], first: Array, second: Array, swapped: bool
) -> Spec:
  """Returns for each dimension of an operand the mesh axes of the same dimension of another operand.

  Args:
    name: the primitive.
    params: its parameters.
    first: the operand.
    second: the other operand.
    swapped: whether `first` is the second operand of a product.
  """
  if name != 'dot_general':
    is_same = len(first.shape) == len(second.shape)
    return second.spec if is_same else unsplit(len(first.shape))
  _, (left, right) = params['dimension_numbers']
  own, other = (right, left) if swapped else (left, right)
  places = dict(zip(own, other, strict=True))
  return tuple(second.spec[places[i]] if i in places else () for i in range(len(first.shape)))


def constrained(sharding: NamedSharding, array: Array) -> Spec:
  """Returns the spec of a sharding constraint, whose unconstrained dimensions keep their axes."""
  entries = [*sharding.spec, *(None,) * (len(array.shape) - len(sharding.spec))]
  is_free = [entry is PartitionSpec.UNCONSTRAINED for entry in entries]
  named = [() if free else as_tuple(e) for e, free in zip(entries, is_free, strict=True)]
  rest = without(array.spec, [axis for axes in named for axis in axes])
  return tuple(rest[i] if free else named[i] for i, free in enumerate(is_free))
