"""The penalty of a decoder that leaves parts of its source unread."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonNegative
from t2x.layers.attention.head_projections import source_of
from t2x.layers.building import given
from t2x.layers.composites import Around
from t2x.layers.interfaces import Aux, Call, Result, Sublayer

__all__ = ['DoublyStochastic']


class DoublyStochastic(Around):
  """A sublayer with the penalty of doubly stochastic attention (Xu et al. 2015, https://arxiv.org/abs/1502.03044,
  equation 14): weight * mean over source tokens i of (1 - the sum over target tokens t of a_ti)^2, and mean over heads.

  Attention to each token of the source then adds up to about 1 over the target. The paper sums over source tokens,
  which is the weight times their number. The train step adds the penalty to the loss; generation computes none. Its
  metric `read` is the mean deviation |1 - sum|.

  Args:
    d_model: width of the input and output.
    sublayer: builds the sublayer, such as `StateBeforeDecoder`, or `MultiHeadAttention` as `Block.cross`.
    weight: coefficient of the penalty.
    reads_source: whether the sublayer attends to the source; see `FromSource`.

  Raises:
    UserError: the sublayer does not attend to a source.
  """

  def __init__(
    self,
    d_model: int,
    *,
    sublayer: Callable[..., Sublayer],
    weight: NonNegative = 1.0,
    reads_source: bool = False,
    rngs: nnx.Rngs,
  ):
    self.sublayer: Sublayer = given(sublayer, reads_source=reads_source)(d_model, rngs=rngs)
    if not {'source', 'record.probabilities'} <= self.sublayer.reads:
      raise UserError(
        f'DoublyStochastic.sublayer = @{type(self.sublayer).__name__} has no attention to a source whose probabilities '
        'it could add up: use @StateBeforeDecoder, or @MultiHeadAttention as Block.cross'
      )
    self.weight = weight

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Applies the sublayer; without a cache, with the penalty."""
    if cache is not None:
      return self.sublayer(x, call, cache)
    record = call.record | {'probabilities'}
    result = self.sublayer(x, dataclasses.replace(call, record=record))
    probabilities = result.recorded['probabilities']
    shape = probabilities.shape
    keys = source_of(self, call.source).tokens.present
    keys = jnp.broadcast_to(keys, (shape[0], shape[3])).astype(jnp.float32)
    # Those of padding are zeros.
    rest = 1 - probabilities.sum(axis=2)
    share = (keys / jnp.maximum(keys.sum(axis=1, keepdims=True), 1))[:, None] / shape[1]
    share = share.astype(rest.dtype)
    penalty, read = ((values * share).sum(axis=(1, 2)) for values in (rest**2, jnp.abs(rest)))
    own = Aux(
      {'doubly_stochastic': self.weight * penalty},
      {'doubly_stochastic_read': (read.sum(), jnp.asarray(shape[0], read.dtype))},
    )
    recorded = {name: a for name, a in result.recorded.items() if name in call.record}
    return dataclasses.replace(result, aux=result.aux + own, recorded=recorded)
