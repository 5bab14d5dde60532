"""Products of rows with matrices of several parts, where each row belongs to one part, as the tokens of experts do.

The parts are applied together by `jax.vmap` over their parameters, with one array of rows for all (`grouped_parts`). A
row has a value for each part only in principle: inside, `Linear` multiplies each row with the kernel of its own part
(`grouped_product`), and the result again has no dimension of parts. Any other operation with a parameter computes a
value for each part, of which `own_rows` takes that of the row's part: correct, and slow.

On TPUs the product is `jax.lax.ragged_dot`. On CPUs and NVIDIA GPUs, where that multiplies each row with the matrices
of all parts, rows are padded so that blocks of `Groups.block` rows have one part. On CPUs a loop multiplies the blocks
that are in use, on GPUs the kernels of `t2x.layers.grouped_kernels` do, in bfloat16 and float16.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from t2x.base.step import in_step, is_plain, step_context, target
from t2x.layers.arrays import Leaf
from t2x.layers.constraints import map_shards, mesh_axes
from t2x.layers.counting import used_rows
from t2x.layers.products import multiply, multiply_transposed

_ROWS = ('batch', 'length')
# Contracts the columns of rows with the first or the last dimension of their matrices, or the rows of each part.
_FORWARD, _BACKWARD, _SUMS = (
  jax.lax.RaggedDotDimensionNumbers((contracted, ((), ())), (0,), parts)
  for contracted, parts in ((((1,), (1,)), (0,)), (((1,), (2,)), (0,)), (((0,), (0,)), ()))
)


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['sizes', 'part', 'number'],
  meta_fields=['block', 'used'],
)
@dataclasses.dataclass(frozen=True)
class Groups:
  """The part of each row. Each device has rows of its own, sorted by part, and unused ones at the end.

  Attributes:
    sizes: rows of each part of a device, a multiple of `block`.
    part: the part of each row; the number of parts for a row that is not in use.
    block: number of consecutive rows that have the same part.
    used: expected share of the rows that are in use, for counts of FLOPs.
    number: index of the part, in the function of `grouped_parts`.
  """

  sizes: Leaf  # Int[Array, 'batch_devices length_devices parts']
  part: Leaf  # Int[Array, 'batch_devices rows']
  block: int = 1
  used: float = 1.0
  number: Leaf | None = None  # Int[Array, '']

  def linear(
    self,
    x: Float[Array, 'batch rows *inputs'],
    kernel: Float[Array, '...'],
    bias: Float[Array, '...'] | None,
    num_inputs: int,
    axes: Sequence[str | None],
  ) -> Float[Array, 'batch rows *outputs']:
    """Returns the output of a `Linear` in the function of `grouped_parts`; see `t2x.layers.products.linear`."""
    y = grouped_product(x, kernel, axes, self)
    if bias is None:
      return y
    ones, bias = jnp.ones((*x.shape[:2], 1), x.dtype), bias.astype(x.dtype)[None]
    return y + grouped_product(ones, bias, (None, *axes[num_inputs:]), self)


def block_size(rows_per_part: float) -> int:
  """Returns the rows of a block: 1 with `jax.lax.ragged_dot`, else a number that was fastest on two cores."""
  if target() == 'tpu' or is_plain():
    return 1
  return 128 if rows_per_part >= 256 else 64 if rows_per_part >= 64 else 32


def grouped_parts(function: Callable[..., Any], groups: Groups, *stacked: Any) -> tuple[Array, Any]:
  """Applies each part to its rows.

  Args:
    function: returns the output [batch_devices rows width] of one part for all rows, and a tree of arrays.
    groups: the part of each row.
    stacked: arguments of the function with a leading dimension of parts.

  Returns:
    the output of each row's part, and the stacked trees of the parts.
  """

  def apply(number: Array, *arguments: Any) -> tuple[Array, Any]:
    own = dataclasses.replace(groups, number=number)
    with in_step(groups=own):
      y, rest = function(*arguments)
    return own_rows(y, own), rest

  numbers = jnp.arange(len(jax.tree.leaves(stacked)[0]))
  return jax.vmap(apply, out_axes=(None, 0))(numbers, *stacked)


def own_rows(x: Float[Array, 'batch rows *width'], groups: Groups) -> Array:
  """Returns for each row the value of its part; zeros for a row that is not in use."""

  @custom_vmap
  def own(x: Array, groups: Groups) -> Array:
    return x

  @own.def_vmap
  def _(num_parts: int, batched: list[Any], x: Array, groups: Groups) -> tuple[Array, bool]:
    if batched[0]:
      assert groups.number is not None
      is_own = groups.number[:, None, None] == groups.part[None]
      x = jnp.where(is_own.reshape(*is_own.shape, *[1] * (x.ndim - 3)), x, 0).sum(axis=0)
    return x, False

  return own(x, groups)


def grouped_product(
  x: Float[Array, 'batch rows *inputs'],
  kernel: Float[Array, '...'],
  axes: Sequence[str | None],
  groups: Groups,
) -> Float[Array, 'batch rows *outputs']:
  """Contracts each row with the kernel of its part. Call it in the function of `grouped_parts`.

  Args:
    x: the rows.
    kernel: the kernel of one part, [*inputs, *outputs].
    axes: logical name of each dimension of the kernel.
    groups: the part of each row.
  """
  num_inputs = x.ndim - 2

  @custom_vmap
  def product(x: Array, kernel: Array, groups: Groups) -> Array:
    return jnp.tensordot(x, kernel, num_inputs)

  @product.def_vmap
  def _(
    num_parts: int, batched: object, x: Array, kernel: Array, groups: Groups
  ) -> tuple[Array, bool]:
    apply = _forward if is_plain() else _product
    how = _How(tuple(axes), groups.block, groups.used, step_context().layout, target())
    return apply(how, x, kernel, groups.sizes), False

  return product(own_rows(x, groups), kernel, groups)


@dataclasses.dataclass(frozen=True, eq=False)
class _How:
  """Static arguments of a product: axes of a kernel, those of `Groups`, the layout and the target."""

  axes: tuple[str | None, ...]
  block: int
  used: float
  layout: object
  target: str


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(how: _How, x: Array, kernel: Array, sizes: Array) -> Array:
  return _forward(how, x, kernel, sizes)


def _forward(how: _How, x: Array, kernel: Array, sizes: Array) -> Array:
  num_inputs = x.ndim - 2
  inputs, outputs = how.axes[:num_inputs], how.axes[num_inputs:]

  def local(x: Array, kernel: Array, sizes: Array) -> Array:
    matrices = _matrices(kernel, num_inputs)
    y = _multiply(how, _rows(x, num_inputs), matrices, sizes.reshape(-1), _FORWARD)
    return _summed(y, inputs, besides=_ROWS).reshape(*x.shape[:2], *kernel.shape[num_inputs + 1 :])

  in_axes = (*_ROWS, *inputs), ('experts', *how.axes), (*_ROWS, None)
  return map_shards(local, in_axes, (*_ROWS, *outputs))(x, kernel, sizes)


def _saved(how: _How, *arguments: Array) -> tuple[Array, tuple[Array, ...]]:
  return _forward(how, *arguments), arguments


def _backward(how: _How, saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, None]:
  # A backward pass is traced after the step has left its context.
  with in_step(layout=how.layout, target=how.target):
    return _gradients(how, saved, gradient)


def _gradients(how: _How, saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, None]:
  x, kernel, sizes = saved
  num_inputs = x.ndim - 2
  inputs, outputs = how.axes[:num_inputs], how.axes[num_inputs:]

  def of_rows(gradient: Array, kernel: Array, sizes: Array) -> Array:
    matrices = _matrices(kernel, num_inputs)
    rows = _rows(gradient, len(outputs))
    dx = _multiply(how, rows, matrices, sizes.reshape(-1), _BACKWARD)
    return _summed(dx, outputs, besides=_ROWS).reshape(
      *gradient.shape[:2], *kernel.shape[1 : num_inputs + 1]
    )

  def of_kernel(x: Array, gradient: Array, sizes: Array) -> Array:
    rows, gradients = _rows(x, num_inputs), _rows(gradient, len(outputs))
    dkernel = _sums(how, rows, gradients, sizes.reshape(-1)).astype(kernel.dtype)
    shape = len(dkernel), *x.shape[2:], *gradient.shape[2:]
    return _summed(dkernel, _ROWS, besides=('experts',)).reshape(shape)

  rows_in, rows_out, matrices = (*_ROWS, *inputs), (*_ROWS, *outputs), ('experts', *how.axes)
  of_sizes = *_ROWS, None
  dx = map_shards(of_rows, (rows_out, matrices, of_sizes), rows_in)(gradient, kernel, sizes)
  dkernel = map_shards(of_kernel, (rows_in, rows_out, of_sizes), matrices)(x, gradient, sizes)
  return dx, dkernel, None


_product.defvjp(_saved, _backward)


def _rows(x: Array, num_last: int) -> Float[Array, 'rows width']:
  """Merges the first two dimensions and the last ones."""
  rows = x.shape[0] * x.shape[1]
  return x.reshape(rows, x.size // rows)


def _matrices(kernel: Array, num_inputs: int) -> Float[Array, 'parts inputs outputs']:
  parts, *shape = kernel.shape
  width = 1
  for size in shape[:num_inputs]:
    width *= size
  return kernel.reshape(parts, width, kernel.size // (parts * width))


def _summed(x: Array, split: Sequence[str | None], besides: Sequence[str]) -> Array:
  """Returns the sum over mesh axes that split one of the logical axes `split` and do not split `besides`."""
  names, others = ({name for axis in axes for name in mesh_axes(axis)} for axes in (split, besides))
  return jax.lax.psum(x, tuple(sorted(names - others))) if names - others else x


def _multiply(
  how: _How, x: Array, matrices: Array, sizes: Array, numbers: jax.lax.RaggedDotDimensionNumbers
) -> Array:
  """Multiplies each row with the matrix of its part, or its transpose."""
  block, axis = how.block, numbers.dot_dimension_numbers[0][1][0] - 1
  if _has_kernels(how, x, *matrices.shape[1:]):
    # The import of Pallas takes a tenth of a second.
    from t2x.layers.grouped_kernels import block_products

    part = _part_of_blocks(block, len(x), sizes)
    with used_rows(how.used):
      return block_products(x, matrices.astype(x.dtype), part, transposed=axis == 1)
  if not _has_loops(how):
    with used_rows(how.used):
      return jax.lax.ragged_dot_general(x, matrices, sizes, numbers)
  part = _part_of_blocks(block, len(x), sizes)

  def add(i: Array, y: Array) -> Array:
    rows = jax.lax.dynamic_slice_in_dim(x, i * block, block)
    matrix = jax.lax.dynamic_index_in_dim(matrices, part[i], keepdims=False)
    return jax.lax.dynamic_update_slice_in_dim(y, multiply(rows, matrix, axis), i * block, 0)

  y = jnp.zeros((len(x), matrices.shape[2 - axis]), x.dtype)
  return jax.lax.fori_loop(0, sizes.sum() // block, add, y)


def _sums(
  how: _How, x: Float[Array, 'rows inputs'], gradient: Float[Array, 'rows outputs'], sizes: Array
) -> Float[Array, 'parts inputs outputs']:
  """Returns x^T gradient of the rows of each part."""
  block = how.block
  if _has_kernels(how, x, x.shape[1], gradient.shape[1]):
    from t2x.layers.grouped_kernels import block_sums

    with used_rows(how.used):
      return block_sums(x, gradient.astype(x.dtype), jnp.cumsum(sizes) // block, block)
  if not _has_loops(how):
    with used_rows(how.used):
      return jax.lax.ragged_dot_general(x, gradient, sizes, _SUMS)
  part = _part_of_blocks(block, len(x), sizes)

  def add(i: Array, total: Array) -> Array:
    rows, gradients = (jax.lax.dynamic_slice_in_dim(a, i * block, block) for a in (x, gradient))
    own = jax.lax.dynamic_index_in_dim(total, part[i], keepdims=False)
    own = own + multiply_transposed(rows, gradients).astype(total.dtype)
    return jax.lax.dynamic_update_index_in_dim(total, own, part[i], 0)

  dtype = jnp.promote_types(x.dtype, jnp.float32)
  total = jnp.zeros((len(sizes), x.shape[1], gradient.shape[1]), dtype)
  return jax.lax.fori_loop(0, sizes.sum() // block, add, total)


def _has_loops(how: _How) -> bool:
  return how.block > 1 and how.target == 'cpu'


def _has_kernels(how: _How, x: Array, *widths: int) -> bool:
  if how.block == 1 or how.target != 'gpu':
    return False
  return x.dtype in (jnp.bfloat16, jnp.float16) and not any(width % 32 for width in widths)


def _part_of_blocks(block: int, num_rows: int, sizes: Array) -> Int[Array, ' blocks']:
  ends = jnp.cumsum(sizes) // block
  return jnp.searchsorted(ends, jnp.arange(num_rows // block), side='right')
