"""The dtype policy of a training run, and gathers of parameters whose gradients are accumulated in float32."""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from t2x.base.step import is_plain, target
from t2x.layers.constraints import num_parts

Tree = TypeVar('Tree')

# Largest table whose gradient is a product of one-hot vectors on a GPU, where a scatter adds the gradients of
# repeated rows one after another (openxla/xla issues 26371 and 46225). Not measured.
ONE_HOT_ROWS = 2048
# Logical axes of gathered rows. Sorting rows that are split over devices would move all of them.
_ROWS = ('batch', 'looked_up_batch', 'length')


@dataclasses.dataclass(frozen=True)
class Dtypes:
  """Dtype policy of a run. `compute` is `Trainer.compute_dtype`; all other dtypes are fixed.

  Accelerators round the float32 operands of matrix products (TF32, bfloat16) except those of states, inverses and
  choices of experts, clusters and hashes, which use `exact_einsum`.

  Attributes:
    compute: activations, operands and results of matrix products (which accumulate in float32),
      the keys and values of kernels, and the copy of the parameters that a step computes with.
    parameters: the stored parameters, their gradients as passed to the optimizer, and the sums over
      micro-batches. Parameters declared with `param(..., keep_float32=True)` are not cast to `compute`, and
      their layers compute with them in float32: scales and biases of norms, learned scalars, tables that
      are added to attention scores.
    logits: the outputs of a head, the loss and the metrics.
    softmax: attention scores, the terms added to them, and the probabilities.
    reductions: statistics of norms, and gradients of parameters that are gathered or broadcast, which are
      rounded to the dtype of the step's copy once, after the sum over positions.
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


def working_dtype(model: object) -> jnp.dtype:
  """Returns the compute dtype of a model: the dtype of its parameters, without parameters that remain float32."""
  variables = jax.tree.leaves(model, is_leaf=lambda leaf: isinstance(leaf, nnx.Param))
  dtypes = {
    variable.get_raw_value().dtype
    for variable in variables
    if isinstance(variable, nnx.Param) and not variable.get_metadata().get('keep_float32')
  }
  return jnp.result_type(*dtypes) if dtypes else jnp.dtype(Dtypes.parameters)


def gather(
  table: Float[Array, '...'],
  *indices: Int[Array, '...'],
  axis: int = 0,
  mode: str | None = None,
) -> Float[Array, '...']:
  """Returns `table[indices]`, with a gradient accumulated in float32 and rounded to the table's dtype once.

  In bfloat16 a sum of ones stops at 256, and frequent tokens and positions occur more often than that.

  Args:
    table: the table.
    indices: one array per indexed dimension, broadcast against each other.
    axis: the first indexed dimension.
    mode: as in `jnp.ndarray.at[...].get`: 'fill' returns NaN for an index that is out of range.
  """
  if is_plain():
    wide = table.astype(jnp.promote_types(table.dtype, Dtypes.reductions))
    return _read(axis, mode, wide, indices).astype(table.dtype)
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


def _forward(
  axis: int, mode: str | None, shape: jax.ShapeDtypeStruct, table: Array, indices: tuple[Array, ...]
) -> tuple[Array, tuple[Array, ...]]:
  return _read(axis, mode, table, indices), indices


def _backward(
  axis: int,
  mode: str | None,
  shape: jax.ShapeDtypeStruct,
  indices: tuple[Array, ...],
  gradient: Array,
) -> tuple[Array, None]:
  wide = jax.ShapeDtypeStruct(shape.shape, jnp.promote_types(shape.dtype, Dtypes.reductions))
  # The sums for GPUs drop indices that are out of range, as a scatter does in these modes.
  slow = target() == 'gpu' and axis == 0 and len(indices) == 1
  if slow and mode in (None, 'fill') and wide.shape[0] <= ONE_HOT_ROWS:
    total = one_hot_sum(wide, gradient, *indices)
  elif slow and mode in (None, 'fill') and all(num_parts(name) == 1 for name in _ROWS):
    total = sorted_sum(wide, gradient, *indices)
  else:
    scatter = jax.linear_transpose(lambda table: _read(axis, mode, table, indices), wide)
    (total,) = scatter(gradient.astype(wide.dtype))
  return total.astype(shape.dtype), None


def one_hot_sum(
  table: jax.ShapeDtypeStruct,
  gradient: Float[Array, '...'],
  index: Int[Array, '...'],
) -> Float[Array, '...']:
  """Returns the gradient of `table[index]` by a product of one-hot vectors and the rows' gradients.

  Args:
    table: shape and dtype of the result.
    gradient: gradients [*index.shape, *table.shape[1:]] of the rows.
    index: integers, negative from the end; indices out of range are dropped.
  """
  hot = jax.nn.one_hot(_in_range(index, table.shape[0]), table.shape[0], dtype=gradient.dtype)
  rows = tuple(range(index.ndim))
  return jax.lax.dot_general(
    hot,
    gradient,
    ((rows, rows), ((), ())),
    # By default a GPU rounds float32 operands to ten bits.
    precision=jax.lax.Precision.HIGHEST if gradient.dtype == jnp.float32 else None,
    preferred_element_type=table.dtype,
  )


def sorted_sum(
  table: jax.ShapeDtypeStruct,
  gradient: Float[Array, '...'],
  index: Int[Array, '...'],
) -> Float[Array, '...']:
  """As `one_hot_sum`, by a scatter in the order of the indices, whose repeated rows a GPU adds in registers."""
  flat = _in_range(index, table.shape[0]).reshape(-1)
  order = jnp.argsort(flat)
  updates = gradient.reshape(flat.size, *table.shape[1:])[order].astype(table.dtype)
  zeros = jnp.zeros(table.shape, table.dtype)
  return zeros.at[flat[order]].add(updates, mode='drop', indices_are_sorted=True)


def _in_range(index: Int[Array, '...'], size: int) -> Int[Array, '...']:
  """Returns non-negative indices; `size` for indices out of range."""
  index = jnp.where(index < 0, index + size, index)
  return jnp.where((index < 0) | (index > size), size, index)


_gather.defvjp(_forward, _backward)


def exact_einsum(equation: str, *operands: Float[Array, '...']) -> Array:
  """`jnp.einsum` whose float32 operands are not rounded; by default accelerators multiply them at lower precision.

  For states, inverses, and choices (of experts, clusters, hashes), whose errors add up or change the result.
  """
  return jnp.einsum(equation, *operands, precision=jax.lax.Precision.HIGHEST)


def float32_sums(tree: Tree) -> Callable[[], Tree]:
  """Returns a function that returns `tree`, for the body of a loop: the gradients of its calls are added up in float32
  or wider, and rounded once.

  A loop adds up the gradient of an array that each of its steps reads in the dtype of this array. In bfloat16 such a
  sum over 1,024 steps was wrong by 60 %.
  """
  leaves, structure = jax.tree.flatten(tree)
  wide = {
    i: a.astype(jnp.promote_types(a.dtype, Dtypes.reductions))
    for i, a in enumerate(leaves)
    if jnp.issubdtype(jnp.result_type(a), jnp.floating)
  }

  def read() -> Tree:
    narrow = [wide[i].astype(a.dtype) if i in wide else a for i, a in enumerate(leaves)]
    return jax.tree.unflatten(structure, narrow)

  return read


def zero_sums(tree: Tree, dtype: DTypeLike = Dtypes.reductions) -> Tree:
  """Returns zeros in `dtype` or wider, to which `add_sums` adds gradients of the arrays of a tree."""
  return jax.tree.map(
    lambda a: jnp.zeros(jnp.shape(a), jnp.promote_types(jnp.result_type(a), dtype)), tree
  )


def add_sums(total: Tree, further: Tree) -> Tree:
  """Returns sums with further gradients added, in the dtype of the sums."""
  return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, further)


def rounded_sums(total: Tree, tree: Tree) -> Tree:
  """Returns sums in the dtypes of the arrays of a tree."""
  return jax.tree.map(lambda a, b: a.astype(jnp.result_type(b)), total, tree)


def with_rank(x: Float[Array, '...'], ndim: int) -> Float[Array, '...']:
  """Prepends dimensions of size 1 to `x` up to rank `ndim`, in place of implicit rank promotion."""
  return x.reshape((1,) * (ndim - x.ndim) + x.shape)
