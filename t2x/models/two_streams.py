"""Content and query streams of a permutation language model (XLNet: Yang et al. 2019,
https://arxiv.org/abs/1906.08237, section 2.3)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers import (
  Cache,
  Call,
  Hidden,
  Ordered,
  Pattern,
  Result,
  RowLayout,
  Tokens,
  normal,
  param,
)
from t2x.layers.caches import WithoutCache
from t2x.layers.parameters import Initializer
from t2x.models.stack import Stack, reads_of

__all__ = ['TwoStreams']

QUERY = 'query'


class TwoStreams(WithoutCache, Stack):
  """A stack whose output predicts each token from those before it in `Tokens.order`, and from its own position.

  The content stream starts with the input; each of its tokens sees itself, earlier tokens and tokens with the same
  number. The query stream starts with one learned vector; each of its tokens sees the content of earlier tokens only.
  Both are in one row of twice the length, so that any sublayer which reads the pattern has two streams with the same
  parameters; keys and values of the query stream are computed, but not read. Recorded arrays are of both streams,
  the content first.

  The parameters are those of `Stack` with the same settings, and `query`: a `Stack` can start from them (`InitFrom`).

  Args:
    d_model: width of the streams.
    query_init: initialiser of the learned vector.
    settings: those of `Stack`.

  Raises:
    UserError: when called, if the tokens have no order or fill a grid, or layers have no position encoding; when asked
      for a cache.
  """

  no_cache = (
    'predicts the tokens of a row in any order, so it has no cache: to generate, use a Decoder with a '
    'Stack, which can start from the same parameters'
  )

  def __init__(
    self,
    d_model: int,
    *,
    query_init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, rngs=rngs, **settings)
    self.query = param(query_init, (d_model,), ('embed',), rngs, kind='vector')

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    return super().patterns(pattern & Ordered() & Hidden(QUERY))

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: list[dict[str, Cache]] | None = None,
  ) -> Result:
    """Returns the query stream after all layers; see `Stack.__call__`."""
    length = x.shape[1]
    if call.encoding is None and 'encoding' in reads_of(self.blocks):
      raise UserError(
        'the query stream of TwoStreams needs a position encoding that acts in the layers, such as Block.encoding = '
        '@XLPositions: positions that are added to the embeddings are in the content stream only'
      )
    queries = jnp.broadcast_to(self.query[...].astype(x.dtype), x.shape)
    streams = jnp.concatenate([x, queries], axis=1)
    pattern = call.pattern & Ordered() & Hidden(QUERY)
    own = dataclasses.replace(call, tokens=_twice(call.tokens), pattern=pattern)
    result = super().__call__(streams, own)
    return dataclasses.replace(result, x=result.x[:, length:])


def _twice(tokens: Tokens) -> Tokens:
  """Returns the tokens of both streams, where a query is just before the content of its token."""
  if tokens.order is None:
    raise UserError(
      'TwoStreams needs Tokens.order, which this batch does not have: use the task PermutationLM, or a Stack'
    )
  if tokens.grid is not None:
    raise UserError('TwoStreams needs rows of text, not of a grid: use a plain Stack')
  positions = tokens.positions
  is_query = jnp.zeros((1, 2 * positions.shape[1]), bool).at[:, positions.shape[1] :].set(True)
  content, queries = (
    dataclasses.replace(tokens, order=2 * tokens.order + 1 - before) for before in (0, 1)
  )
  both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), content, queries)
  marks = {**both.marks, QUERY: is_query}
  return dataclasses.replace(both, marks=marks, layout=RowLayout.ARBITRARY, right_padded=False)
