"""Products of rows with a kernel, and sums over rows, whose gradients are fast on a CPU.

XLA's CPU backend is slow at products whose left operand is transposed and wider than the right one, as in the gradients of
some kernels, and at sums over rows. On one CPU device these functions have gradients that avoid both; elsewhere they are the
plain operations, which the compiler splits over devices. `experiments/speed/NOTES.md` has the measurements.
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
  return _contract(x, kernel, num_inputs)


def _contract(x: Array, kernel: Array, num_inputs: int) -> Array:
  contracted = tuple(range(x.ndim - num_inputs, x.ndim)), tuple(range(num_inputs))
  return jax.lax.dot_general(x, kernel, (contracted, ((), ())))


@jax.custom_vjp
def _project(x: Array, kernel: Array) -> Array:
  return _contract(x, kernel, x.ndim - 1)


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
  return _project(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
  x, kernel = saved
  rows, gradient_rows = x.reshape(len(x), -1), gradient.reshape(len(x), -1)
  matrix = kernel.reshape(rows.shape[1], -1)
  if rows.shape[1] <= gradient_rows.shape[1]:
    change = rows.T @ gradient_rows
  else:  # The narrower operand on the left; without the barrier the compiler exchanges them.
    change = jax.lax.optimization_barrier(gradient_rows.T @ rows).T
  return (gradient_rows @ matrix.T).reshape(x.shape), change.reshape(kernel.shape)


_project.defvjp(_forward, _backward)


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
