"""Relative bias with labels of their own for pairs with a global token (ETC: Ainslie et al. 2020,
https://arxiv.org/abs/2004.08483)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.dtypes import Dtypes, gather
from t2x.layers.initializers import normal
from t2x.layers.parameters import Initializer, param
from t2x.layers.positions.common import T5Bias
from t2x.layers.tokens import Tokens

__all__ = ['GlobalTokenBias']


class GlobalTokenBias(T5Bias):
  """Learned bias on the scores for each head, by the kind of the pair: one for a long token that sees a
  global token, one for a global token that sees a long token, one for two global tokens, and `T5Bias` by
  distance for two long tokens.

  `GlobalTokens` prepends the global tokens; they have no distance to the tokens of the text. ETC has a label for each
  of these kinds too, but as vectors that are added to keys (as in `ShawPositions`), which needs the full matrix of
  scores; a bias can be computed in blocks. All layers share the table.

  Args:
    num_buckets: number of buckets of distances between long tokens.
    init: initialiser of both tables.

  Raises:
    UserError: num_buckets is odd or not less than max_distance; when called, the tokens have no mark 'global'.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    num_buckets: Size = 32,
    max_distance: Size = 128,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model,
      num_heads=num_heads,
      bidirectional=True,
      num_buckets=num_buckets,
      max_distance=max_distance,
      init=init,
      rngs=rngs,
    )
    axes = ('buckets', 'heads')
    # Rows: long to global, global to long, global to global.
    self.global_table = param(init, (3, num_heads), axes, rngs, kind='table', keep_float32=True)

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    by_distance = super().scores(q, k, q_tokens, k_tokens, scale=scale, **context)
    q_global, k_global = (_is_global(tokens) for tokens in (q_tokens, k_tokens))
    kind = 2 * q_global[:, :, None] + k_global[:, None, :] - 1
    table = self.global_table[...].astype(Dtypes.softmax)
    by_kind = jnp.moveaxis(gather(table, jnp.maximum(kind, 0)), -1, 1)
    return jnp.where(kind[:, None] < 0, by_distance, by_kind)


def _is_global(tokens: Tokens) -> Array:
  """Returns 1 for global tokens and 0 for others, int32."""
  if 'global' not in tokens.marks:
    raise UserError(
      'GlobalTokenBias needs global tokens: set LanguageModel.embedding = @GlobalTokens, or use T5Bias'
    )
  return tokens.marks['global'].astype(jnp.int32)
