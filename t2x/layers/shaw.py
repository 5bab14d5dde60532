"""Relative positions in the keys (Shaw et al. 2018, https://arxiv.org/abs/1803.02155)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.errors import UserError
from t2x.layers.base import Initializer, param
from t2x.layers.initializers import normal
from t2x.layers.positions import PositionEncoding
from t2x.ranges import Size

__all__ = ['ShawPositions']


class ShawPositions(PositionEncoding):
  """Scores are q_i (k_j + a_ij)', a_ij a learned vector for the distance j - i, clipped.

  One table serves all heads and, as every encoding here, all layers; the paper's own models have one
  for each layer at least. The paper's vectors for the values, a^V, are left out: they need the
  probabilities, which kernels do not give away, and by its own ablation those for the keys, a^K, may
  be enough. Only kernels that make the whole matrix of scores take it: `Dense`, `XLA` and `Auto`.

  Args:
    d_model: not used; every encoding is built alike.
    head_dim: features of a head.
    max_distance: distances beyond it, on each side, count as it (k in the paper).
    init: initialiser of the table [2 max_distance + 1, head_dim].

  Raises:
    UserError: max_distance is below 1; when called, if heads have not `head_dim` features.
  """

  has_bias = True
  reads_queries = True

  def __init__(
    self,
    d_model: int,
    *,
    head_dim: Size,
    max_distance: Size = 16,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    if max_distance < 1:
      raise UserError(f'ShawPositions.max_distance = {max_distance} must be at least 1')
    self.max_distance = max_distance
    self.table = param(init, (2 * max_distance + 1, head_dim), ('buckets', 'head_dim'), rngs)

  def query_bias(
    self,
    q: Float[Array, 'batch queries heads head_dim'],
    q_positions: Int[Array, '#batch queries'],
    k_positions: Int[Array, '#batch keys'],
  ) -> Float[Array, 'batch heads queries keys']:
    """q_i a_ij', in float32 or wider: each query meets each distance once, and pairs pick."""
    table = self.table[...].astype(q.dtype)
    if q.shape[-1] != table.shape[-1]:
      raise UserError(
        f'ShawPositions.head_dim = {table.shape[-1]}, but heads have {q.shape[-1]} features: '
        'make them equal'
      )
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum('bqhd,rd->bhqr', q, table, preferred_element_type=dtype)
    distance = k_positions[:, None, :] - q_positions[:, :, None]
    row = jnp.clip(distance, -self.max_distance, self.max_distance) + self.max_distance
    return jnp.take_along_axis(scores, row[:, None], axis=-1)
