"""Synthetic attention scores, which depend on the query and the position of the key, or on the positions only
(Synthesizers: Tay et al. 2020, https://arxiv.org/abs/2005.00743)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.base.ranges import Size
from t2x.layers.attention.kernels.base import Logits, softmax_dtype
from t2x.layers.attention.projections import Heads
from t2x.layers.counting import pair_products
from t2x.layers.dtypes import gather
from t2x.layers.initializers import normal, xavier_uniform
from t2x.layers.interfaces import Call, Scores
from t2x.layers.parameters import Initializer, param
from t2x.layers.tokens import Tokens

__all__ = ['DenseScores', 'FactorizedDenseScores', 'FactorizedRandomScores', 'RandomScores']

Queries = Float[Array, 'batch queries heads head_dim']
QueryPositions = Int[Array, '#batch queries']
KeyPositions = Int[Array, '#batch keys']
PairScores = Float[Array, '#batch heads queries keys']


class SyntheticScores(nnx.Module):
  """Base class of synthetic scores. Built as `Scores(heads, rngs=rngs)`.

  Attributes:
    max_length: maximum sequence length.
    reads: see `t2x.layers.interfaces.Scores`.
  """

  implements = (Scores,)
  max_length: Size
  reads = frozenset({'positions'})

  def __call__(
    self,
    q: Queries | None,
    k: Float[Array, 'batch keys kv_heads head_dim'] | None,
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    scale: float,
    call: Call,
  ) -> Logits:
    """Returns the scores of each pair; `scale` and `call` are ignored."""
    return Logits(self.pair_scores(q, q_tokens.positions, k_tokens.positions))

  def pair_scores(
    self, q: Queries | None, q_positions: QueryPositions, k_positions: KeyPositions
  ) -> PairScores:
    """Returns the scores of each pair.

    Args:
      q: queries; None unless 'q' is in `reads`.
      q_positions: positions of the queries, below max_length.
      k_positions: positions of the keys, below max_length.
    """
    raise NotImplementedError


class DenseScores(SyntheticScores):
  """Dense synthetic scores relu(x W1) W2: each query predicts a score for each position.

  x W1 are the queries of the `Synthesizer`, which differ between heads. All heads share W2, as in the
  authors' code (mesh-tensorflow's `dense_minus`), whose sizes Narang et al. 2021
  (https://arxiv.org/abs/2102.11972) report.

  Args:
    heads: sizes of the attention layer; all heads share W2.
    init: initialiser of W2 [head_dim, max_length].
  """

  reads = frozenset({'q', 'positions'})

  def __init__(
    self,
    heads: Heads,
    *,
    max_length: Size,
    init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.max_length = max_length
    shape, axes = (heads.head_dim, max_length), ('head_dim', 'length')
    self.kernel = param(init, shape, axes, rngs, matrix=shape)

  def pair_scores(
    self, q: Queries | None, q_positions: QueryPositions, k_positions: KeyPositions
  ) -> PairScores:
    """Returns the score that each query predicts for the position of each key."""
    return _take_positions(_project(q, self.kernel), k_positions)


class FactorizedDenseScores(SyntheticScores):
  """Factorized `DenseScores`: each query predicts a and b scores, and position i b + j has the product of
  scores i and j.

  Args:
    heads: sizes of the attention layer; all heads share the matrices.
    factors: sizes a and b; a b is the maximum sequence length.
    init: initialiser of the two matrices [head_dim, a] and [head_dim, b].
  """

  reads = frozenset({'q', 'positions'})

  def __init__(
    self,
    heads: Heads,
    *,
    factors: tuple[Size, Size],
    init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.max_length = factors[0] * factors[1]
    self.a, self.b = (
      param(init, shape, ('head_dim', 'length'), rngs, matrix=shape)
      for shape in ((heads.head_dim, factors[0]), (heads.head_dim, factors[1]))
    )

  def pair_scores(
    self, q: Queries | None, q_positions: QueryPositions, k_positions: KeyPositions
  ) -> PairScores:
    """Returns the product that each query predicts for the position of each key."""
    a, b = _project(q, self.a), _project(q, self.b)
    return _take_positions(
      (a[..., :, None] * b[..., None, :]).reshape(*a.shape[:-1], -1), k_positions
    )


class RandomScores(SyntheticScores):
  """Random synthetic scores: a learned table of scores for each head, independent of the input.

  Args:
    heads: sizes of the attention layer.
    init: initialiser of the table [num_heads, max_length, max_length].
  """

  def __init__(
    self,
    heads: Heads,
    *,
    max_length: Size,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.max_length = max_length
    shape = (heads.num_heads, max_length, max_length)
    self.table = param(init, shape, ('heads', 'length', 'length'), rngs, kind='table')

  def pair_scores(
    self, q: Queries | None, q_positions: QueryPositions, k_positions: KeyPositions
  ) -> PairScores:
    """Returns the table's entry at the query's position (row) and the key's position (column)."""
    pairs = q_positions[:, :, None], k_positions[:, None, :]
    return jnp.moveaxis(gather(self.table[...], *pairs, axis=1, mode='fill'), 0, 1)


class FactorizedRandomScores(SyntheticScores):
  """Low-rank `RandomScores`: R1 R2' for each head. With rank 16 this is Narang et al.'s "factorized".

  Args:
    heads: sizes of the attention layer.
    rank: number of columns of R1 and of R2 (k in the paper, 8 there).
    init: initialiser of R1 and R2, each [num_heads, max_length, rank].
  """

  def __init__(
    self,
    heads: Heads,
    *,
    max_length: Size,
    rank: Size = 16,
    init: Initializer = normal(0.1),
    rngs: nnx.Rngs,
  ):
    self.max_length = max_length
    self.num_heads = heads.num_heads
    shape, axes = (heads.num_heads, max_length, rank), ('heads', 'length', 'rank')
    self.rows = param(init, shape, axes, rngs, kind='table')
    self.columns = param(init, shape, axes, rngs, kind='table')

  def pair_scores(
    self, q: Queries | None, q_positions: QueryPositions, k_positions: KeyPositions
  ) -> PairScores:
    """Returns the product of R1's row for the query's position and R2's row for the key's position."""
    rows, columns = (
      gather(table[...], positions, axis=1, mode='fill')
      for table, positions in ((self.rows, q_positions), (self.columns, k_positions))
    )
    with pair_products():
      return jnp.einsum('hbqr,hbkr->bhqk', rows, columns)


def _project(q: Array | None, kernel: nnx.Param) -> Array:
  """Returns relu(q) times the matrix, in float32 or wider: [batch, heads, queries, outputs]."""
  assert q is not None
  # On CPUs XLA does not support bfloat16 products with a float32 result for this layout.
  dtype = softmax_dtype(q)
  weights = kernel[...].astype(q.dtype).astype(dtype)
  return jnp.einsum('bqhd,dl->bhql', jax.nn.relu(q).astype(dtype), weights)


def _take_positions(scores: Array, k_positions: Array) -> Array:
  """Takes the scores of the keys' positions from those of all positions; NaN for positions out of range."""
  return jnp.take_along_axis(scores, k_positions[:, None, None, :], axis=-1, mode='fill')
