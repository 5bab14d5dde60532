"""Products of activations with parameters: how a `Linear` multiplies, and what XLA computes fast on one CPU device.

XLA's CPU backend is slow at products whose left operand is transposed and wider than the right one, as in the gradients
of some kernels, and at sums over rows. It computes a product in bfloat16 with the CPU's instructions only if the result
is in float32 and no operand is transposed; it converts both operands to float32 otherwise. It computes a batched
product, as in attention, in one thread, unless it can merge it with a sum or a maximum over a dimension into one
operation. It merges only operations with a single user, and no product whose left operand is transposed. On one CPU
device these functions avoid all of this; elsewhere they are the plain operations, which the compiler splits over
devices. `experiments/speed/NOTES.md` has the measurements.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.step import is_plain, step_context, target
from t2x.layers.constraints import num_devices, num_parts
from t2x.layers.dtypes import Dtypes


class Products:
  """Products of activations with parameters, and their gradients: the plain operations, which the compiler splits over
  devices."""

  def project(self, x: Float[Array, '...'], kernel: Float[Array, '...'], num_inputs: int) -> Array:
    """Contracts the last dimensions of `x` with the first of `kernel`.

    Args:
      x: [..., *inputs].
      kernel: [*inputs, *outputs].
      num_inputs: number of dimensions of the inputs.

    Returns:
      [..., *outputs].
    """
    contracted = tuple(range(x.ndim - num_inputs, x.ndim)), tuple(range(num_inputs))
    return jax.lax.dot_general(x, kernel, (contracted, ((), ())))

  def repeat(self, x: Float[Array, '*shape'], leading: tuple[int, ...]) -> Float[Array, '...']:
    """Returns [*leading, *shape], whose gradient for `x` is a sum over rows."""
    return jnp.broadcast_to(x, (*leading, *x.shape))

  def multiply(
    self, rows: Float[Array, '*rows inputs'], matrix: Float[Array, '_ _'], axis: int
  ) -> Float[Array, '*rows outputs']:
    """Contracts the inputs of `rows` with a dimension of `matrix`; without a gradient of its own."""
    return jax.lax.dot_general(rows, matrix, (((rows.ndim - 1,), (axis,)), ((), ())))

  def sum_over_rows(
    self, left: Float[Array, '*rows inputs'], right: Float[Array, '*rows outputs']
  ) -> Float[Array, 'inputs outputs']:
    """Returns left^T right; without a gradient of its own."""
    rows = tuple(range(left.ndim - 1))
    return jax.lax.dot_general(left, right, ((rows, rows), ((), ())))


class OneCPUProducts(Products):
  """Products for one CPU device. Arrays with several dimensions of rows have the plain products."""

  def project(self, x, kernel, num_inputs):
    return (
      _project(x, kernel) if x.ndim == num_inputs + 1 else super().project(x, kernel, num_inputs)
    )

  def repeat(self, x, leading):
    return _repeat(leading, x)

  def multiply(self, rows, matrix, axis):
    return multiply(rows, matrix, axis) if rows.ndim == 2 else super().multiply(rows, matrix, axis)

  def sum_over_rows(self, left, right):
    return (
      multiply_transposed(left, right) if left.ndim == 2 else super().sum_over_rows(left, right)
    )


_PLAIN, _ONE_CPU = Products(), OneCPUProducts()


def on_one_cpu() -> bool:
  """Returns whether the program that is traced is for one CPU device, and not with `plain_operations`."""
  return target() == 'cpu' and num_devices() == 1 and not is_plain()


def products() -> Products:
  """Returns the products of the program that is traced."""
  return _ONE_CPU if on_one_cpu() else _PLAIN


def linear(
  x: Float[Array, '...'],
  kernel: Float[Array, '...'],
  bias: Float[Array, '...'] | None,
  num_inputs: int,
  axes: Sequence[str | None],
) -> Float[Array, '...']:
  """Returns the output of a `Linear`; inside `grouped_parts`, each row has the kernel and the bias of its own part.

  Args:
    x: [..., *inputs].
    kernel: [*inputs, *outputs].
    bias: [*outputs]; None: no bias.
    num_inputs: number of dimensions of the inputs.
    axes: logical name of each dimension of the kernel.

  Returns:
    [..., *outputs].
  """
  groups = step_context().groups
  if groups is not None:
    return groups.linear(x, kernel, bias, num_inputs, axes)
  y = products().project(flatten_rows(x, num_inputs), kernel, num_inputs)
  if bias is not None:
    y = y + broadcast(bias, y.shape, y.dtype)
  return y.reshape(*x.shape[: x.ndim - num_inputs], *kernel.shape[num_inputs:])


def flatten_rows(x: Array, num_inputs: int = 1) -> Array:
  """Merges the leading dimensions of the input of a product: [..., *inputs] -> [rows, *inputs].

  XLA's CPU backend computes the gradient of a kernel over several leading dimensions through a transposed copy
  of the input. Where rows are split over devices along their length, merging would move data: the shape stays.
  """
  rows = x.shape[: x.ndim - num_inputs]
  if len(rows) < 2 or num_parts('length') > 1:
    return x
  return x.reshape(math.prod(rows), *x.shape[x.ndim - num_inputs :])


def broadcast(
  x: Float[Array, '...'], shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, '...']:
  """Broadcasts `x` to `shape` and casts it to `dtype`, with a gradient accumulated in float32 or wider and
  rounded to the dtype of `x` once."""
  x = x.astype(jnp.promote_types(x.dtype, Dtypes.reductions))
  leading = shape[: len(shape) - x.ndim]
  if leading and shape[len(leading) :] == x.shape:
    return products().repeat(x, leading).astype(dtype)
  return jnp.broadcast_to(x, shape).astype(dtype)


@jax.custom_vjp
def _project(x: Array, kernel: Array) -> Array:
  return multiply(*_matrices(x, kernel)).reshape(len(x), *kernel.shape[x.ndim - 1 :])


def _matrices(x: Array, kernel: Array) -> tuple[Array, Array]:
  """Merges the dimensions of the inputs, and those of the outputs."""
  inputs = math.prod(x.shape[1:])
  return x.reshape(len(x), inputs), kernel.reshape(inputs, math.prod(kernel.shape[x.ndim - 1 :]))


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
  return _project(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
  x, kernel = saved
  rows, matrix = _matrices(x, kernel)
  gradient = gradient.reshape(len(rows), matrix.shape[1])
  dx, dkernel = multiply(gradient, matrix, axis=1), multiply_transposed(rows, gradient)
  return dx.reshape(x.shape), dkernel.reshape(kernel.shape)


def multiply(
  rows: Float[Array, 'rows inputs'], matrix: Float[Array, '_ _'], axis: int = 0
) -> Float[Array, 'rows outputs']:
  """Contracts the inputs of `rows` with a dimension of `matrix`, for one CPU device."""
  wide = jnp.promote_types(rows.dtype, jnp.float32)
  contracted = ((1,), (axis,)), ((), ())
  y = jax.lax.dot_general(rows, matrix, contracted, preferred_element_type=wide)
  return y.astype(rows.dtype)


def multiply_transposed(
  left: Float[Array, 'rows inputs'], right: Float[Array, 'rows outputs']
) -> Float[Array, 'inputs outputs']:
  """Returns left^T right, a sum over rows, for one CPU device."""
  if left.shape[1] > right.shape[1]:
    # The narrower operand on the left; without the barrier the compiler exchanges them.
    return optimization_barrier(multiply_transposed(right, left)).T
  if left.dtype != jnp.bfloat16:
    return multiply(left.T, right)
  # A copy in row-major order, which the reshape makes of the transposed rows.
  columns = left[None].swapaxes(1, 2).reshape(left.shape[1], len(left))
  return multiply(optimization_barrier(columns), right)


_project.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _repeat(leading: tuple[int, ...], x: Array) -> Array:
  return jnp.broadcast_to(x, (*leading, *x.shape))


def _repeat_forward(leading: tuple[int, ...], x: Array) -> tuple[Array, None]:
  return _repeat(leading, x), None


def _repeat_backward(leading: tuple[int, ...], saved: None, gradient: Array) -> tuple[Array]:
  shape, num_rows = gradient.shape[len(leading) :], math.prod(leading)
  # A product with ones instead of a sum.
  total = jnp.ones((1, num_rows), gradient.dtype) @ gradient.reshape(num_rows, math.prod(shape))
  return (total.reshape(shape),)


_repeat.defvjp(_repeat_forward, _repeat_backward)


Saved = tuple[Array, Array, Array, tuple[Array, ...], Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def merged_attention(
  scale: float,
  q: Float[Array, 'batch queries heads dim'],
  k: Float[Array, 'batch keys heads dim'],
  v: Float[Array, 'batch keys heads v_dim'],
  added: tuple[Float[Array, '#batch #heads queries keys'], ...],
) -> Float[Array, 'batch heads queries v_dim']:
  """Returns softmax(scale q k' + the sum of `added`) v.

  Each of the six products of a forward and a backward pass has a sum or a maximum of its own to merge with: that of the
  softmax, that of its gradient, or the sum that its rows are divided by.
  """
  return _means(_weights(scale, q, k, added), v)


def _weights(scale: float, q: Array, k: Array, added: tuple[Array, ...]) -> Array:
  """Returns exponentials of the scores [batch, heads, queries, keys], of which the largest of each query is 1."""
  scores = jnp.matmul(_heads_first(q), _columns(k)) * scale
  for term in added:
    scores += term
  return jnp.exp(scores - scores.max(axis=-1, keepdims=True))


def _means(weights: Array, v: Array) -> Array:
  return jnp.matmul(weights, _heads_first(v)) / weights.sum(axis=-1, keepdims=True)


def _heads_first(x: Array) -> Array:
  """Returns a copy [batch, heads, length, dim]; without the barrier the product reads transposed operands."""
  return optimization_barrier(x.transpose(0, 2, 1, 3))


def _columns(x: Array) -> Array:
  """Returns a copy [batch, heads, dim, length]."""
  return optimization_barrier(x.transpose(0, 2, 3, 1))


def _merged_forward(
  scale: float, q: Array, k: Array, v: Array, added: tuple[Array, ...]
) -> tuple[Array, Saved]:
  weights = optimization_barrier(_weights(scale, q, k, added))
  return _means(weights, v), (q, k, v, added, weights)


def _merged_backward(
  scale: float, saved: Saved, gradient: Array
) -> tuple[Array, Array, Array, tuple[Array, ...]]:
  q, k, v, added, weights = saved
  # Without this barrier the compiler computes the sums once for both passes, and merges neither with a product.
  weights = optimization_barrier(weights)
  totals = weights.sum(axis=-1, keepdims=True)
  # Two columns whose sum is `totals`, so that each product below can have a sum of its own at little cost.
  parts = optimization_barrier(jnp.concatenate([totals, jnp.zeros_like(totals)], axis=-1))
  gradient = optimization_barrier(gradient)
  weights_change = jnp.matmul(gradient, _columns(v))
  # Not the equal product of gradient and output: its rounding errors do not cancel in sums over the keys.
  mean = (weights * weights_change).sum(axis=-1, keepdims=True) / totals
  # The gradient of the scores times `totals`.
  change = optimization_barrier(weights * (weights_change - mean))

  own_parts, keys = optimization_barrier((parts, k.transpose(0, 2, 1, 3)))
  q_change = jnp.matmul(change, keys) / own_parts.sum(axis=-1, keepdims=True)
  k_change = _transposed_product(parts, q.transpose(0, 2, 3, 1) * scale, change)
  v_change = _transposed_product(parts, gradient.swapaxes(2, 3), weights)
  added_changes = tuple(_sum_to(change / totals, term.shape) for term in added)
  return (
    (optimization_barrier(q_change) * scale).transpose(0, 2, 1, 3),
    k_change.transpose(0, 3, 1, 2),
    v_change.transpose(0, 3, 1, 2),
    added_changes,
  )


def _transposed_product(parts: Array, columns: Array, pairs: Array) -> Array:
  """Divides columns by the sums of `parts`, and multiplies them with pairs of queries and keys.

  Args:
    parts: [batch, heads, queries, 2].
    columns: a vector for each query [batch, heads, dim, queries].
    pairs: [batch, heads, queries, keys].

  Returns:
    [batch, heads, dim, keys].
  """
  parts, columns = optimization_barrier((parts.swapaxes(2, 3), columns))
  return jnp.matmul(columns / parts.sum(axis=-2, keepdims=True), pairs)


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
  """Sums over the dimensions that are 1 in `shape`."""
  dimensions = tuple(i for i, size in enumerate(shape) if size == 1 and x.shape[i] != 1)
  return x.sum(axis=dimensions, keepdims=True)


merged_attention.defvjp(_merged_forward, _merged_backward)
