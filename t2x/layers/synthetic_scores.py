"""Scores that a query gives to positions, whatever stands there, and scores from a table
(Synthesizers: Tay et al. 2020, https://arxiv.org/abs/2005.00743)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.layers.base import Initializer, Tokens, param
from t2x.layers.dtypes import gather
from t2x.layers.initializers import normal, xavier_uniform
from t2x.layers.kernels.base import Logits, softmax_dtype
from t2x.ranges import Size


class SyntheticScores(nnx.Module):
  """Scores of positions. Built as `Scores(num_heads, head_dim, rngs=rngs)`.

  Attributes:
    max_length: most positions that it has scores for.
    reads: see `t2x.layers.interfaces.Scores`.
  """

  max_length: Size
  reads = frozenset({'positions'})

  def __call__(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    k: Float[Array, 'batch keys kv_heads head_dim'] | None,
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    scale: float,
  ) -> Logits:
    """The scores of each pair, which are not scaled."""
    return Logits(self.pair_scores(q, q_tokens.positions, k_tokens.positions))

  def pair_scores(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    q_positions: Int[Array, '#batch queries'],
    k_positions: Int[Array, '#batch keys'],
  ) -> Float[Array, '#batch heads queries keys']:
    """The scores of each pair; `q` is None unless read. Positions are below max_length."""
    raise NotImplementedError


class DenseScores(SyntheticScores):
  """relu(x W1) W2: a query has a score for each position, whatever stands there.

  x W1 are the queries of the `Synthesizer`, different in each head; W2 is shared by heads, as in the
  authors' code (mesh-tensorflow's `dense_minus`), whose sizes Narang et al. 2021
  (https://arxiv.org/abs/2102.11972) report.

  Args:
    num_heads: heads, which share the matrices.
    head_dim: features of a head's query.
    max_length: longest sequence.
    init: initialiser of W2 [head_dim, max_length].
  """

  reads = frozenset({'q', 'positions'})

  def __init__(
    self,
    num_heads: Size,
    head_dim: Size,
    *,
    max_length: Size,
    init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.max_length = max_length
    self.kernel = param(init, (head_dim, max_length), ('head_dim', None), rngs)

  def pair_scores(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    q_positions: Int[Array, '#batch queries'],
    k_positions: Int[Array, '#batch keys'],
  ) -> Float[Array, 'batch heads queries keys']:
    """The scores that each query gives to the positions of the keys."""
    return _pick(_project(q, self.kernel), k_positions)


class FactorizedDenseScores(SyntheticScores):
  """As `DenseScores`, the score of position i b + j being the product of scores i of a and j of b.

  Args:
    num_heads: heads, which share the matrices.
    head_dim: features of a head's query.
    factors: sizes a and b; a b is the longest sequence.
    init: initialiser of the two matrices [head_dim, a] and [head_dim, b].
  """

  reads = frozenset({'q', 'positions'})

  def __init__(
    self,
    num_heads: Size,
    head_dim: Size,
    *,
    factors: tuple[Size, Size],
    init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.max_length = factors[0] * factors[1]
    self.a = param(init, (head_dim, factors[0]), ('head_dim', None), rngs)
    self.b = param(init, (head_dim, factors[1]), ('head_dim', None), rngs)

  def pair_scores(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    q_positions: Int[Array, '#batch queries'],
    k_positions: Int[Array, '#batch keys'],
  ) -> Float[Array, 'batch heads queries keys']:
    """The products for the positions of the keys."""
    a, b = _project(q, self.a), _project(q, self.b)
    return _pick((a[..., :, None] * b[..., None, :]).reshape(*a.shape[:-1], -1), k_positions)


class RandomScores(SyntheticScores):
  """A learned table of scores for each head, the same for every input.

  Args:
    num_heads: heads.
    head_dim: not used.
    max_length: longest sequence.
    init: initialiser of the table [num_heads, max_length, max_length].
  """

  def __init__(
    self,
    num_heads: Size,
    head_dim: Size,
    *,
    max_length: Size,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.max_length = max_length
    shape = (num_heads, max_length, max_length)
    self.table = param(init, shape, ('heads', 'length', 'length'), rngs)

  def pair_scores(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    q_positions: Int[Array, '#batch queries'],
    k_positions: Int[Array, '#batch keys'],
  ) -> Float[Array, '#batch heads queries keys']:
    """The table's entries, at the row of the query's position and the column of the key's."""
    pairs = q_positions[:, :, None], k_positions[:, None, :]
    return jnp.moveaxis(gather(self.table[...], *pairs, axis=1, mode='fill'), 0, 1)


class FactorizedRandomScores(SyntheticScores):
  """A learned table of low rank for each head: R1 R2'. This is Narang et al.'s "factorized", of rank 16.

  Args:
    num_heads: heads.
    head_dim: not used.
    max_length: longest sequence.
    rank: columns of R1 and of R2 (k in the paper, 8 there).
    init: initialiser of R1 and R2, each [num_heads, max_length, rank].
  """

  def __init__(
    self,
    num_heads: Size,
    head_dim: Size,
    *,
    max_length: Size,
    rank: Size = 16,
    init: Initializer = normal(0.1),
    rngs: nnx.Rngs,
  ):
    self.max_length = max_length
    self.num_heads = num_heads
    shape, axes = (num_heads, max_length, rank), ('heads', 'length', None)
    self.rows = param(init, shape, axes, rngs)
    self.columns = param(init, shape, axes, rngs)

  def pair_scores(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    q_positions: Int[Array, '#batch queries'],
    k_positions: Int[Array, '#batch keys'],
  ) -> Float[Array, '#batch heads queries keys']:
    """Products of the rows of the queries' positions and those of the keys'."""
    rows, columns = (
      gather(table[...], positions, axis=1, mode='fill')
      for table, positions in ((self.rows, q_positions), (self.columns, k_positions))
    )
    return jnp.einsum('hbqr,hbkr->bhqk', rows, columns)


def _project(q: Any, kernel: nnx.Param) -> Array:
  """relu(q) times a matrix that heads share, in float32 or wider: [batch, heads, queries, outputs]."""
  # XLA has no product of bfloat16 operands with a float32 result for this layout on CPUs.
  dtype = softmax_dtype(q)
  weights = kernel[...].astype(q.dtype).astype(dtype)
  return jnp.einsum('bqhd,dl->bhql', jax.nn.relu(q).astype(dtype), weights)


def _pick(scores: Array, k_positions: Array) -> Array:
  """The scores of the keys' positions, out of those of all positions; NaN beyond them."""
  return jnp.take_along_axis(scores, k_positions[:, None, None, :], axis=-1, mode='fill')
