"""Contextual position encoding (CoPE: Golovneva et al. 2024, https://arxiv.org/abs/2405.18719)."""

import jax
import jax.numpy as jnp
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.counting import pair_products
from t2x.layers.initializers import zeros
from t2x.layers.parameters import Initializer, param
from t2x.layers.positions.encoding import PositionEncoding

__all__ = ['CoPE']


class CoPE(PositionEncoding):
  """Adds q_i e[p_ij]' to the scores, for positions p that count the keys which the query selects.

  Each visible key has a gate g_ij = sigmoid(scale q_i k_j'), and p_ij is the sum of the gates of the visible keys
  from j on: under `Causal()` from j to i, as in the paper. The vector of a fractional position is interpolated
  between those of its neighbours. The paper has a table in each layer (`Block.encoding`) that the heads share.

  Args:
    head_dim: features per head.
    max_positions: number of position vectors; p is at most `max_positions` - 1.
    init: initialiser of the table [max_positions, head_dim].

  Raises:
    UserError: when called, if heads do not have `head_dim` features.
  """

  reads_content = True

  def __init__(
    self,
    d_model: int,
    *,
    head_dim: Size,
    max_positions: Size = 64,
    init: Initializer = zeros(),
    rngs: nnx.Rngs,
  ):
    shape = max_positions, head_dim
    self.table = param(init, shape, ('length', 'head_dim'), rngs, kind='table')

  def scores(self, q, k, q_tokens, k_tokens, *, scale, visible=None, **context):
    """Returns q_i e[p_ij]', in float32 or wider; `scale` is used only in the gates."""
    table = self.table[...].astype(q.dtype)
    if q.shape[-1] != table.shape[-1]:
      raise UserError(
        f'CoPE.head_dim = {table.shape[-1]}, but heads have {q.shape[-1]} features: make them equal'
      )
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    with pair_products():
      dots = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=dtype)
    gates = jax.nn.sigmoid(scale * dots)
    if visible is not None:
      gates = jnp.where(visible, gates, 0)
    # Masked keys keep finite positions, whose scores the mask removes.
    positions = jnp.minimum(jnp.flip(jnp.flip(gates, -1).cumsum(-1), -1), len(table) - 1)
    below = jax.lax.stop_gradient(jnp.floor(positions))
    weight = positions - below
    by_position = jnp.einsum('bqhd,pd->bhqp', q, table, preferred_element_type=dtype)
    rows = below.astype(jnp.int32)
    lower = jnp.take_along_axis(by_position, rows, axis=-1)
    upper = jnp.take_along_axis(by_position, jnp.minimum(rows + 1, len(table) - 1), axis=-1)
    return lower + weight * (upper - lower)
