"""Dense attention on one CPU device, in products that the compiler runs on all threads.

XLA's CPU backend computes a batched product in one thread, unless it can merge it with a sum or a maximum over a
dimension into one operation. It merges only operations with a single user, and no product whose left operand is
transposed. Here each of the six products of a forward and a backward pass has a sum or a maximum of its own: that of
the softmax, that of its gradient, or the sum that its rows are divided by. `experiments/speed/NOTES.md` has the
measurements.
"""

import functools

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier
from jaxtyping import Array, Float

Saved = tuple[Array, Array, Array, tuple[Array, ...], Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
  scale: float,
  q: Float[Array, 'batch queries heads dim'],
  k: Float[Array, 'batch keys heads dim'],
  v: Float[Array, 'batch keys heads v_dim'],
  added: tuple[Float[Array, '#batch #heads queries keys'], ...],
) -> Float[Array, 'batch heads queries v_dim']:
  """Returns softmax(scale q k' + the sum of `added`) v."""
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


def _forward(
  scale: float, q: Array, k: Array, v: Array, added: tuple[Array, ...]
) -> tuple[Array, Saved]:
  weights = optimization_barrier(_weights(scale, q, k, added))
  return _means(weights, v), (q, k, v, added, weights)


def _backward(
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


attend.defvjp(_forward, _backward)
