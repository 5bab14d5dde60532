"""Untied absolute positions (TUPE: Ke et al. 2020, https://arxiv.org/abs/2006.15595)."""

import jax.numpy as jnp
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.counting import pair_products
from t2x.layers.initializers import normal, xavier_uniform
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.positions.encoding import PositionEncoding
from t2x.layers.tokens import rows_at

__all__ = ['TUPE']


class TUPE(PositionEncoding):
  """Adds (p_i U^Q)(p_j U^K)' / sqrt(2 head_dim) to the scores, for learned position vectors p (TUPE-A).

  Position vectors have separate projections, shared by all layers, and both terms of the scores have the
  scale 1 / sqrt(2 head_dim). With `untied_first` the positional scores of position 0 (the class token) as
  a query and as a key are replaced by learned scalars theta_1 and theta_2 of each head. (The softmax of a
  row cancels theta_1, unless the scores have a sink.)

  Args:
    d_model: width of the position vectors.
    num_heads: number of heads of the attention.
    max_length: maximum sequence length.
    untied_first: whether to replace the scores of position 0 (the paper's reset_theta).
    init: initialiser of the position vectors [max_length, d_model].
    kernel_init: initialiser of the two projections [d_model, num_heads, d_model / num_heads].
    theta_init: initialiser of theta_1 and theta_2, each [num_heads].

  Raises:
    UserError: num_heads does not divide d_model; when called, if a sequence is longer than max_length.
  """

  num_terms = 2

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    max_length: Size,
    untied_first: bool = True,
    init: Initializer = normal(0.02),
    kernel_init: Initializer = xavier_uniform(),
    theta_init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    if d_model % num_heads:
      raise UserError(f'TUPE.num_heads = {num_heads} does not divide d_model = {d_model}')
    self.max_length = max_length
    shape, axes = (num_heads, d_model // num_heads), ('embed', 'heads', 'head_dim')
    self.table = param(init, (max_length, d_model), ('length', 'embed'), rngs, kind='table')
    self.q = Linear((d_model,), shape, axes, init=kernel_init, use_bias=False, rngs=rngs)
    self.k = Linear((d_model,), shape, axes, init=kernel_init, use_bias=False, rngs=rngs)

    def theta():
      return param(theta_init, (num_heads,), ('heads',), rngs, kind='vector', keep_float32=True)

    self.first_query = theta() if untied_first else None
    self.first_key = theta() if untied_first else None

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    q_positions, k_positions = q_tokens.encoded_positions, k_tokens.encoded_positions
    table = self.table[...].astype(jnp.float32)
    queries, keys = (
      project(rows_at(table, positions, 'TUPE.max_length'))
      for project, positions in ((self.q, q_positions), (self.k, k_positions))
    )
    with pair_products():
      scores = jnp.einsum('bqhd,bkhd->bhqk', queries, keys) * scale
    if self.first_query is None or self.first_key is None:
      return scores

    def per_head(theta):
      return theta[...].astype(jnp.float32)[:, None, None]

    scores = jnp.where(k_positions[:, None, None, :] == 0, per_head(self.first_key), scores)
    return jnp.where(q_positions[:, None, :, None] == 0, per_head(self.first_query), scores)
