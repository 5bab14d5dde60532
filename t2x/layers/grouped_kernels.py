"""Products of blocks of rows, each with the matrix of its own part, as Pallas kernels for NVIDIA GPUs.

In the products of `t2x.layers.grouped` a block of consecutive rows belongs to one part, so that a tile of the result is
an ordinary product of matrices, whose tiles of the second factor are found by the part of the block (as in MegaBlocks,
Gale et al. 2022, https://arxiv.org/abs/2211.15841).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

# Rows and columns of a tile: the largest number that divides the dimension of a matrix.
_TILES = 128, 64, 32


def block_products(
  x: Float[Array, 'rows inputs'],
  matrices: Float[Array, 'parts first second'],
  part: Int[Array, ' blocks'],
  transposed: bool = False,
  interpret: bool = False,
) -> Float[Array, 'rows outputs']:
  """Multiplies each row with the matrix of the part of its block.

  Args:
    x: the rows; all blocks have the same number of rows, a power of two and at least 16.
    matrices: the matrix of each part, with multiples of 32 rows and columns.
    part: the part of each block; the number of parts for a block that is not in use, whose result is 0.
    transposed: whether to multiply with the transposed matrices.
    interpret: whether to run Pallas' interpreter, on any device; for tests.
  """
  block = len(x) // len(part)
  inputs, outputs = matrices.shape[1:][:: -1 if transposed else 1]
  step, tile = _tile(inputs, 64), _tile(outputs)

  def kernel(part, x, matrices, y):
    own = part[pl.program_id(1)]
    rows, columns = (pl.ds(pl.program_id(i) * size, size) for i, size in ((1, block), (0, tile)))

    def add(i, total):
      middle = pl.ds(i * step, step)
      if transposed:
        return total + _dot(x[rows, middle], matrices[own, columns, middle].T)
      return total + _dot(x[rows, middle], matrices[own, middle, columns])

    # Triton needs bounds of one type.
    steps = jnp.where(own < matrices.shape[0], jnp.int32(inputs // step), jnp.int32(0))
    total = jax.lax.fori_loop(jnp.int32(0), steps, add, jnp.zeros((block, tile), jnp.float32))
    y[rows, columns] = total.astype(y.dtype)

  grid, multiply_adds = (outputs // tile, len(part)), len(x) * inputs * outputs
  return _call(kernel, grid, (len(x), outputs), x.dtype, multiply_adds, interpret)(
    part, x, matrices
  )


def block_sums(
  x: Float[Array, 'rows inputs'],
  gradient: Float[Array, 'rows outputs'],
  ends: Int[Array, ' parts'],
  block: int,
  interpret: bool = False,
) -> Float[Array, 'parts inputs outputs']:
  """Returns x^T gradient of the rows of each part, in float32.

  Args:
    x: the rows, sorted by part; a multiple of 32 columns.
    gradient: the second factor of each row; a multiple of 32 columns.
    ends: number of blocks up to and with each part.
    block: rows of a block.
    interpret: whether to run Pallas' interpreter, on any device; for tests.
  """
  inputs, outputs = x.shape[1], gradient.shape[1]
  tiles = _tile(inputs), _tile(outputs)
  step = min(block, 64)

  def kernel(ends, x, gradient, sums):
    part = pl.program_id(2)
    left, right = (pl.ds(pl.program_id(i) * size, size) for i, size in enumerate(tiles))
    begin = jnp.where(part > 0, ends[jnp.maximum(part - 1, 0)], 0)

    def add(i, total):
      rows = pl.ds(i * step, step)
      return total + _dot(x[rows, left].T, gradient[rows, right])

    scale = block // step
    first, last = begin * scale, ends[part] * scale
    total = jax.lax.fori_loop(first, last, add, jnp.zeros(tiles, jnp.float32))
    sums[part, left, right] = total

  grid, multiply_adds = (inputs // tiles[0], outputs // tiles[1], len(ends)), x.size * outputs
  return _call(kernel, grid, (len(ends), inputs, outputs), jnp.float32, multiply_adds, interpret)(
    ends, x, gradient
  )


def _tile(width: int, most: int = _TILES[0]) -> int:
  return next(tile for tile in _TILES if tile <= most and width % tile == 0)


def _call(
  kernel: Callable[..., None],
  grid: tuple[int, ...],
  shape: tuple[int, ...],
  dtype: DTypeLike,
  multiply_adds: int,
  interpret: bool,
) -> Callable[..., Array]:
  return pl.pallas_call(
    kernel,
    grid=grid,
    # Read by `t2x plan`.
    cost_estimate=pl.CostEstimate(flops=2 * multiply_adds, transcendentals=0, bytes_accessed=0),
    out_shape=jax.ShapeDtypeStruct(shape, dtype),
    compiler_params=triton.CompilerParams(num_warps=8, num_stages=3),
    interpret=interpret,
  )


def _dot(a: Array, b: Array) -> Array:
  return jnp.dot(a, b, preferred_element_type=jnp.float32)
