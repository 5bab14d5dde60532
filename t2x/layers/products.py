"""Products of rows with a matrix, and sums over rows, whose gradients are fast on a CPU.

XLA's CPU backend is slow at products whose left operand is transposed and wider than the right one, as in the gradients of
some kernels, and at sums over rows. It computes a product in bfloat16 with the CPU's instructions only if the result is
in float32 and no operand is transposed; it converts both operands to float32 otherwise. On one CPU device these functions
avoid all of this; elsewhere they are the plain operations, which the compiler splits over devices.
`experiments/speed/NOTES.md` has the measurements.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.layers.constraints import num_devices


def on_one_cpu() -> bool:
  """Whether the program that is traced is for one CPU device."""
  return jax.default_backend() == 'cpu' and num_devices() == 1


def project(x: Float[Array, '...'], kernel: Float[Array, '...'], num_inputs: int) -> Array:
  """Contracts the last dimensions of `x` with the first of `kernel`.

  Args:
    x: [..., *inputs].
    kernel: [*inputs, *outputs].
    num_inputs: number of dimensions of the inputs.

  Returns:
    [..., *outputs].
  """
  if x.ndim == num_inputs + 1 and on_one_cpu():
    return _project(x, kernel)
  contracted = tuple(range(x.ndim - num_inputs, x.ndim)), tuple(range(num_inputs))
  return jax.lax.dot_general(x, kernel, (contracted, ((), ())))


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
    return jax.lax.optimization_barrier(multiply_transposed(right, left)).T
  if left.dtype != jnp.bfloat16:
    return multiply(left.T, right)
  # A copy in row-major order, which the reshape makes of the transposed rows.
  columns = left[None].swapaxes(1, 2).reshape(left.shape[1], len(left))
  return multiply(jax.lax.optimization_barrier(columns), right)


_project.defvjp(_forward, _backward)


def exact_einsum(equation: str, *operands: Float[Array, '...']) -> Array:
  """`jnp.einsum` whose float32 operands are not rounded; by default accelerators multiply them at lower precision.

  For states, inverses, and choices (of experts, clusters, hashes), whose errors add up or change the result.
  """
  return jnp.einsum(equation, *operands, precision=jax.lax.Precision.HIGHEST)


def repeat(x: Float[Array, '*shape'], leading: tuple[int, ...]) -> Float[Array, '...']:
  """Returns [*leading, *shape], whose gradient for `x` is a sum over rows."""
  if on_one_cpu():
    return _repeat(leading, x)
  return jnp.broadcast_to(x, (*leading, *x.shape))


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
