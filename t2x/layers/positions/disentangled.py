"""Disentangled attention (DeBERTa: He et al. 2020, https://arxiv.org/abs/2006.03654; DeBERTa-v3:
https://arxiv.org/abs/2111.09543)."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.initializers import normal
from t2x.layers.interfaces import Norm
from t2x.layers.norms import LayerNorm
from t2x.layers.parameters import Initializer, param
from t2x.layers.positions.encoding import PositionEncoding

__all__ = ['Disentangled']


class Disentangled(PositionEncoding):
  """Adds content-to-position and position-to-content terms to the scores, which are
  (q_i k_j' + q_i (W^K r)' + (W^Q r) k_j') / sqrt(3 head_dim) for a vector r of the distance i - j.

  All layers share the vectors r and project them with their own query and key projections, as DeBERTa-v2 and
  -v3 do. Dropout is not applied to r.

  Args:
    d_model: width of the vectors r, which is the width of the layers.
    max_distance: distances are clipped to this, on each side.
    num_buckets: number of vectors on each side; even. Distances up to half of it have a vector each; the
      remaining vectors cover ranges that grow logarithmically up to `max_distance`. None: each
      distance has a vector.
    norm: builds the norm of r; None: no norm.
    init: initialiser of the table [2 num_buckets, d_model].

  Raises:
    UserError: num_buckets is odd, below 4 or not below max_distance.
  """

  num_terms = 3
  reads_content = True

  def __init__(
    self,
    d_model: int,
    *,
    max_distance: Size = 512,
    num_buckets: Size | None = 256,
    norm: Callable[..., Norm] | None = LayerNorm,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    if num_buckets is not None and (num_buckets % 2 or not 4 <= num_buckets < max_distance):
      raise UserError(
        f'Disentangled.num_buckets = {num_buckets} must be even, at least 4 and less than max_distance = '
        f'{max_distance}; None: a vector for each distance'
      )
    self.max_distance = max_distance
    self.num_buckets = num_buckets
    rows = 2 * (num_buckets or max_distance)
    self.table = param(init, (rows, d_model), ('buckets', 'embed'), rngs, kind='table')
    self.norm = norm and norm(d_model, rngs=rngs)

  def row(self, distance: Int[Array, '*shape']) -> Int[Array, '*shape']:
    """Returns the row of the table for `distance` = query position - key position."""
    span = self.num_buckets or self.max_distance
    bucket = distance
    if self.num_buckets is not None:
      buckets = jnp.asarray(_log_buckets(self.num_buckets, self.max_distance))
      bucket = jnp.sign(distance) * buckets[jnp.minimum(jnp.abs(distance), self.max_distance)]
    return jnp.clip(bucket + span, 0, 2 * span - 1)

  def scores(self, q, k, q_tokens, k_tokens, *, scale, project=None, **context):
    table = self.table[...].astype(q.dtype)
    vectors = table if self.norm is None else self.norm(table)
    groups = q.shape[2] // k.shape[2]
    k, relative_k = (jnp.repeat(a, groups, axis=-2) for a in (k, project.k(vectors)))
    product = functools.partial(
      jnp.einsum, preferred_element_type=jnp.promote_types(q.dtype, jnp.float32)
    )
    to_positions = product('bqhd,rhd->bhqr', q, relative_k)
    to_content = product('bkhd,rhd->bhkr', k, project.q(vectors))
    distance = q_tokens.encoded_positions[:, :, None] - k_tokens.encoded_positions[:, None, :]
    row = self.row(distance)[:, None]
    terms = jnp.take_along_axis(to_positions, row, axis=-1)
    terms += jnp.take_along_axis(to_content, row.swapaxes(2, 3), axis=-1).swapaxes(2, 3)
    return scale * terms


def _log_buckets(num_buckets: int, max_distance: int) -> Int[np.ndarray, ' distances']:
  """Returns the bucket of each distance 0 .. max_distance, which is num_buckets for max_distance.

  Computed in float32 as in DeBERTa's code, since rounding decides at the bounds of buckets.
  """
  exact = num_buckets // 2
  distance = np.arange(max_distance + 1)
  ratio = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
  steps = np.log(ratio) / np.log(np.float32((max_distance - 1) / exact)) * np.float32(exact - 1)
  return np.where(distance <= exact, distance, np.ceil(steps) + exact).astype(np.int32)
