"""Key-value attention (Daniluk et al. 2017, https://arxiv.org/abs/1702.04521): each token is cut into parts for keys,
values and the prediction, of which the states of a recurrent language model otherwise serve all three."""

import math

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.head_outputs import HeadOutputs
from t2x.layers.attention.key_values import (
  Hidden,
  ProjectedKeyValues,
  Queries,
  Stored,
)
from t2x.layers.attention.projections import Heads, head_projection, rotated_keys
from t2x.layers.interfaces import Call
from t2x.layers.parameters import Initializer

__all__ = ['PredictionHeads', 'SplitKeyValues', 'SplitQueries']


class SplitQueries(nnx.Module):
  """Queries that are projections of the first of equal parts of a token.

  Args:
    heads: sizes of the attention layer.
    use_bias: whether the projection has a bias.
    kernel_init: initialiser of the projection.
    num_parts: number of parts.
  """

  implements = (Queries,)

  def __init__(
    self,
    heads: Heads,
    use_bias: bool,
    kernel_init: Initializer,
    *,
    num_parts: Size,
    rngs: nnx.Rngs,
  ):
    self.size = _size_of(self, heads.d_model, num_parts)
    self.projection = head_projection(self.size, heads.queries, kernel_init, use_bias, rngs)

  def __call__(self, x):
    return self.projection(x[..., : self.size])


class SplitKeyValues(ProjectedKeyValues):
  """Keys that are projections of the first of equal parts of a token, and values that are the second part itself.

  With `AdditiveScores`, `SplitQueries` and `PredictionHeads`, 1 part is the attention over the states of a language
  model in the paper, 2 parts are its key-value attention, 3 parts its key-value-predict attention. With 1 part the
  values are the token itself.

  Args:
    heads: sizes of the attention layer.
    use_bias: whether the projection of keys has a bias.
    kernel_init: initialiser of the projection of keys.
    num_parts: number of parts.
  """

  def __init__(
    self,
    heads: Heads,
    use_bias: bool,
    kernel_init: Initializer,
    *,
    num_parts: Size,
    rngs: nnx.Rngs,
  ):
    self.size = _size_of(self, heads.d_model, num_parts)
    if math.prod(heads.values) != self.size:
      raise UserError(
        f'SplitKeyValues has values of {self.size} features in all, but MultiHeadAttention '
        f'{heads.num_kv_heads} heads of {heads.value_dim}: set MultiHeadAttention.value_dim = '
        'd_model / num_parts / num_kv_heads'
      )
    self.first = self.size if num_parts > 1 else 0
    self.shapes = heads.keys, heads.values
    self.k = head_projection(self.size, heads.keys, kernel_init, use_bias, rngs, axis='kv_heads')

  def project(self, x: Hidden, call: Call) -> Stored:
    """Returns the rotated keys, and the values."""
    v = x[..., self.first : self.first + self.size]
    keys = rotated_keys(self.k(x[..., : self.size]), call)
    return keys, v.reshape(*x.shape[:2], *self.shapes[1])


class PredictionHeads(nnx.Module):
  """The outputs of all heads r, followed by the last of equal parts p of the query's token, so that the output
  projection of the attention layer computes r W_r + p W_p.

  The paper applies a tanh to it, which `Activation` is.

  Args:
    heads: sizes of the attention layer.
    num_parts: number of parts.
  """

  implements = (HeadOutputs,)
  shape: tuple[int, int]

  def __init__(self, heads: Heads, *, num_parts: Size, rngs: nnx.Rngs):
    self.size = _size_of(self, heads.d_model, num_parts)
    self.shape = 1, heads.num_heads * heads.value_dim + self.size

  def __call__(
    self, y: Float[Array, 'batch length heads head_dim'], x: Hidden, call: Call
  ) -> Float[Array, 'batch length 1 features']:
    heads = y.reshape(*y.shape[:2], -1)
    return jnp.concatenate([heads, x[..., -self.size :]], axis=-1)[:, :, None]


def _size_of(part: nnx.Module, d_model: int, num_parts: int) -> int:
  if d_model % num_parts:
    raise UserError(
      f'{type(part).__name__}.num_parts = {num_parts} does not divide d_model = {d_model}: choose a divisor'
    )
  return d_model // num_parts
