"""Attention between tokens with the same hash (Reformer, Kitaev et al. 2020, https://arxiv.org/abs/2001.04451),
in time and memory linear in the length for a fixed number of tokens per bucket."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size, TunableRate
from t2x.layers.attention.groups import HeadRows, attend_in_groups
from t2x.layers.attention.head_projections import HeadProjections, Hidden
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.caches import Cache
from t2x.layers.dtypes import exact_einsum
from t2x.layers.interfaces import Call, Result

__all__ = ['LSHAttention']

# The score of a token for itself, as in the authors' code: lower than those of other visible tokens and higher
# than those of hidden ones.
OWN_SCORE = -1e5
# Added to the mean square of a query before its root, as in the authors' code.
EPSILON = 1e-6


class LSHAttention(HeadProjections):
  """Attention in which a token attends to the nearest tokens of its segment with the same hash.

  Queries are also the keys, divided by their norm. In each round the hash of a query q is the index of the
  maximum of [qR, -qR] for a random R. Tokens are sorted by hash; a token attends to those of its hash that
  are at most `chunk` places before it and, under Full(), after it, and to itself only if there is no other.
  The rounds are averaged with the weights of their softmax denominators, as in the authors' code, which
  counts a pair that meets in several rounds several times.

  If no hash has more than `chunk` tokens, the pairs are those of the paper. Otherwise the paper takes the
  tokens of a chunk and the one before, whose boundaries depend on all tokens of the row: a later token would
  change which earlier tokens are visible, and so would packing. The maximum of `chunk` places does not.

  The pattern must be Full() or Causal(), and tokens of a segment must be in the order of their positions.

  Args:
    num_buckets: number of hashes per round, even. The paper uses about 2 length / chunk.
    rounds: number of rounds.
    chunk: maximum number of places between a query and its keys on each side.
    seed: seed of the random projections R, which differ between heads, rounds and layers.
    use_bias: whether the query and value projections have biases.
    dropout_rate: dropout of the attention probabilities.
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `HeadProjections`; num_buckets is odd.
  """

  uses_rows = 'sorts the tokens of a row'

  projections = ('q', 'v')

  def __init__(
    self,
    d_model: int,
    *,
    num_buckets: Size,
    rounds: Size = 2,
    chunk: Size = 64,
    seed: int = 0,
    use_bias: bool = False,
    out_bias: bool = False,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    if num_buckets % 2:
      raise UserError(
        f'LSHAttention.num_buckets = {num_buckets} is odd, but hashes come in pairs of opposite directions: '
        'choose an even number'
      )
    super().__init__(d_model, use_bias=use_bias, out_bias=out_bias, rngs=rngs, **settings)
    self.num_buckets, self.rounds, self.chunk, self.seed = num_buckets, rounds, chunk, seed
    self.dropout_rate = dropout_rate

  def __call__(self, x: Hidden, call: Call, cache: Cache | None = None) -> Result:
    """Attends from each token of `x` to the tokens with the same hash."""
    is_causal = self.check_call(call)
    # Sorting needs complete rows.
    q, v = (a.swapaxes(1, 2) for a in self.rows(x))
    square = jnp.square(q.astype(softmax_dtype(q))).mean(axis=-1, keepdims=True)
    k = (q * jax.lax.rsqrt(square + EPSILON) * self.head_dim**-0.5).astype(q.dtype)
    groups = hashes(q, self.rotations(call))
    if call.tokens.segments is not None:
      # Padding is in groups of segment 0.
      groups = groups + self.num_buckets * call.tokens.segments[:, None, None]
    dropped: dict[str, Any] = {'dropout_rate': self.dropout_rate, 'key': call.key}
    y = attend_in_groups(
      q, k, v, groups, self.chunk, is_causal=is_causal, own_score=OWN_SCORE, **dropped
    )
    return Result(self.output(y.swapaxes(1, 2)))

  def rotations(self, call: Call) -> Float[Array, 'heads head_dim rounds directions']:
    """Returns the random projections R of the layer of this call."""
    key = jax.random.fold_in(jax.random.key(self.seed), call.place)
    shape = self.num_heads, self.head_dim, self.rounds, self.num_buckets // 2
    return jax.random.normal(jax.random.fold_in(key, call.repeat), shape, jnp.float32)


def hashes(
  q: HeadRows, rotations: Float[Array, 'heads head_dim rounds directions']
) -> Int[Array, 'batch heads rounds length']:
  """Returns the index of the maximum of [qR, -qR], from 0 to 2 directions - 1."""
  rotated = exact_einsum('bhld,hdrn->bhrln', q.astype(rotations.dtype), rotations)
  return jnp.concatenate([rotated, -rotated], axis=-1).argmax(axis=-1)
