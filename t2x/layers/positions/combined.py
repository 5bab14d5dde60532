"""Several position encodings at once."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty
from t2x.layers.positions.encoding import PositionEncoding

__all__ = ['CombinedPositions']


class CombinedPositions(PositionEncoding):
  """Applies several position encodings: their vectors, scores and values are added, and their rotations applied in
  turn, such as learned positions with the bias of T5.

  Args:
    d_model: width of the tokens.
    parts: builds the encodings.

  Raises:
    UserError: two of them prepare features of the same name.
  """

  def __init__(
    self,
    d_model: int,
    *,
    parts: Annotated[Sequence[Callable[..., PositionEncoding]], NonEmpty],
    rngs: nnx.Rngs,
  ):
    self.parts = nnx.List([part(d_model, rngs=rngs) for part in parts])
    self.hooks = frozenset().union(*(part.hooks for part in self.parts))
    names = [name for part in self.parts for name in part.features]
    if len(set(names)) < len(names):
      raise UserError(
        f'CombinedPositions.parts prepare features of the same names {names}: use each once'
      )
    self.features = {name: shape for part in self.parts for name, shape in part.features.items()}
    lengths = [part.max_length for part in self.parts if part.max_length is not None]
    self.max_length = min(lengths, default=None)
    self.reads_content = any(part.reads_content for part in self.parts)
    self.num_terms = 1 + sum(part.num_terms - 1 for part in self.parts)

  def _with(self, hook: str) -> list[PositionEncoding]:
    return [part for part in self.parts if hook in part.hooks]

  def embed(self, x, tokens):
    return functools.reduce(lambda x, part: part.embed(x, tokens), self._with('embed'), x)

  def address(self, x, tokens):
    return functools.reduce(lambda x, part: part.address(x, tokens), self._with('address'), x)

  def prepare(self, x, call):
    return {name: array for part in self.parts for name, array in part.prepare(x, call).items()}

  def rotate(self, q, k, q_tokens, k_tokens):
    for part in self._with('rotate'):
      q, k = part.rotate(q, k, q_tokens, k_tokens)
    return q, k

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    terms: list[Any] = [
      part.scores(q, k, q_tokens, k_tokens, scale=scale, **context) for part in self._with('scores')
    ]
    return functools.reduce(operator.add, terms)

  def values(self, probabilities, q_tokens, k_tokens):
    terms: list[Any] = [
      part.values(probabilities, q_tokens, k_tokens) for part in self._with('values')
    ]
    return functools.reduce(operator.add, terms)
