"""Relative position representations of keys and values (Shaw et al. 2018,
https://arxiv.org/abs/1803.02155)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.counting import pair_products
from t2x.layers.initializers import normal
from t2x.layers.parameters import Initializer, param
from t2x.layers.positions.encoding import PositionEncoding, distances
from t2x.layers.tokens import Tokens

__all__ = ['ShawPositions']


class ShawPositions(PositionEncoding):
  """Adds learned vectors of the distance j - i to keys and optionally to values: scores are
  q_i (k_j + a^K_ij)' and outputs sum_j p_ij (v_j + a^V_ij).

  All heads and layers share the tables; the paper has at least one table per layer. In the paper's ablation
  a^K without a^V performs as well as both. The kernel must compute the full matrix of scores (`Dense`, `XLA`,
  `Auto`) and, with `values`, of probabilities (`Dense`, `Auto`).

  Args:
    head_dim: features per head.
    max_distance: distances are clipped to this, on each side (k in the paper).
    values: whether to add vectors to the values as well (a^V), from a separate table.
    init: initialiser of the tables [2 max_distance + 1, head_dim].

  Raises:
    UserError: max_distance is below 1; when called, if heads do not have `head_dim` features.
  """

  reads_content = True

  def __init__(
    self,
    d_model: int,
    *,
    head_dim: Size,
    max_distance: Size = 16,
    values: bool = False,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    if max_distance < 1:
      raise UserError(f'ShawPositions.max_distance = {max_distance} must be at least 1')
    self.max_distance = max_distance
    shape, axes = (2 * max_distance + 1, head_dim), ('buckets', 'head_dim')
    self.table = param(init, shape, axes, rngs, kind='table')
    self.value_table = param(init, shape, axes, rngs, kind='table') if values else None
    if not values:
      self.hooks = self.hooks - {'values'}

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    """Returns scale q_i a^K_ij' in float32 or wider, from the products of each query with each distance."""
    table = self.table[...].astype(q.dtype)
    if q.shape[-1] != table.shape[-1]:
      raise UserError(
        f'ShawPositions.head_dim = {table.shape[-1]}, but heads have {q.shape[-1]} features: '
        'make them equal'
      )
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum('bqhd,rd->bhqr', q, table, preferred_element_type=dtype)
    rows = self._rows(q_tokens, k_tokens)
    return jnp.take_along_axis(scores, rows[:, None], axis=-1) * scale

  def values(self, probabilities, q_tokens, k_tokens):
    """Returns sum_j p_ij a^V_ij, from the total probability of each distance."""
    assert self.value_table is not None  # Else `hooks` does not contain 'values'.
    table = self.value_table[...].astype(probabilities.dtype)
    rows = self._rows(q_tokens, k_tokens)[..., None] == jnp.arange(len(table))[None, None, None]
    with pair_products():
      by_distance = jnp.einsum('bhqk,bqkr->bqhr', probabilities, rows.astype(probabilities.dtype))
    return by_distance @ table

  def _rows(self, q_tokens: Tokens, k_tokens: Tokens) -> Int[Array, '#batch queries keys']:
    """Returns the row of the tables for each pair."""
    clipped = jnp.clip(distances(q_tokens, k_tokens), -self.max_distance, self.max_distance)
    return clipped + self.max_distance
