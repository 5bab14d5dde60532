"""Sums of a loss over blocks of tokens, whose logits are in memory one block at a time.

The gradient of a block is computed together with its loss, while its logits are in memory, so that no logits
are computed twice (Cut Your Losses, https://arxiv.org/abs/2411.09009; Liger Kernel,
https://arxiv.org/abs/2410.10989). It is exact because the loss is a sum: its gradient with respect to each
array is known up to the factor that the backward pass supplies.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from t2x.base.ranges import Size
from t2x.base.step import is_plain
from t2x.layers.dtypes import Dtypes, add_sums, zero_sums
from t2x.models.losses import Sums

# Number of tokens of each row per block of the loss; None: all tokens; 'auto': by size (`LogitHead.chunk`).
Chunk = Size | Literal['auto'] | None

LossSums = Callable[
  [Float[Array, 'batch tokens d_model'], Int[Array, 'batch tokens'], Float[Array, 'batch tokens']],
  Sums,
]


def block_sums(
  sums: LossSums,
  x: Float[Array, 'batch length d_model'],
  labels: Int[Array, 'batch length'],
  weights: Float[Array, 'batch length'],
  chunk: int,
  parts: int,
) -> Sums:
  """Computes `sums(x, labels, weights)` in blocks of tokens.

  Only the sum of the loss has a gradient, with respect to `x`, `weights` and the arrays that `sums` encloses.
  The gradients of enclosed arrays are accumulated in float32 or wider and rounded once.

  Args:
    sums: the sums of a part of the tokens; it must be additive over tokens.
    x: hidden vectors.
    labels: class index of each token.
    weights: weight of each token.
    chunk: number of tokens of each row per block; if rows are split over devices, of each device's part.
    parts: number of devices that rows are split over.
  """
  blocks = tuple(_split(array, chunk, parts) for array in (x, weights, labels))
  # A function with its own derivative has to take the arrays that `sums` encloses as arguments.
  traced, shapes = jax.make_jaxpr(
    lambda x, weights, labels: sums(x, labels, weights), return_shape=True
  )(*(block[0] for block in blocks))
  enclosed, structure = traced.consts, jax.tree.structure(shapes)
  trained = [i for i, array in enumerate(enclosed) if jnp.issubdtype(array.dtype, jnp.floating)]

  def of_block(arrays, x, weights, labels):
    replaced = dict(zip(trained, arrays, strict=True))
    constants = [replaced.get(i, array) for i, array in enumerate(enclosed)]
    flat = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, constants))(x, weights, labels)
    return jax.tree.unflatten(structure, flat)

  return _add_blocks(of_block)([enclosed[i] for i in trained], *blocks)


def _add_blocks(of_block: Callable[..., Sums]) -> Callable[..., Sums]:
  """Returns a function that adds up `of_block(arrays, *block)` over stacked blocks."""

  def total_sums(arrays, *blocks):
    sums = jax.lax.map(lambda block: of_block(arrays, *block), blocks)
    return jax.tree.map(lambda values: values.sum(axis=0), sums)

  if is_plain():
    return total_sums
  total = jax.custom_vjp(total_sums)

  def forward(arrays, *blocks):
    def loss(arrays, *block):
      sums = of_block(arrays, *block)
      return sums['loss'][0], sums

    def add(gradient, block):
      compute = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
      (_, sums), (further, *of_tokens) = compute(arrays, *block)
      return add_sums(gradient, further), (sums, of_tokens)

    gradient, (sums, of_tokens) = jax.lax.scan(add, zero_sums(arrays), blocks)
    # The arrays are saved for their dtypes only.
    saved = (arrays, gradient, of_tokens)
    return jax.tree.map(lambda values: values.sum(axis=0), sums), saved

  def backward(saved, cotangent):
    arrays, gradient, of_tokens = saved
    factor = cotangent['loss'][0]

    def scaled(array, dtype):
      return (array.astype(_accumulated(dtype)) * factor).astype(dtype)

    of_arrays = [scaled(a, array.dtype) for a, array in zip(gradient, arrays, strict=True)]
    return of_arrays, *(scaled(a, a.dtype) for a in of_tokens), None

  total.defvjp(forward, backward)
  return total


def _accumulated(dtype: DTypeLike) -> Any:
  return jnp.promote_types(dtype, Dtypes.reductions)


def _split(array: Array, chunk: int, parts: int) -> Array:
  """[batch, length, ...] -> [blocks, batch, parts * chunk, ...], padded with zeros."""
  batch, length, *rest = array.shape
  size = length // parts
  chunk = min(chunk, size)
  array = array.reshape(batch, parts, size, *rest)
  array = jnp.pad(array, ((0, 0), (0, 0), (0, -size % chunk), *[(0, 0)] * len(rest)))
  array = array.reshape(batch, parts, -1, chunk, *rest)
  return jnp.moveaxis(array, 2, 0).reshape(-1, batch, parts * chunk, *rest)
