"""When beam search is done with a prompt, that is when its pool of finished hypotheses is final.

Systems differ in this as much as in the length penalty, and find other hypotheses for it. These are
the three of Hugging Face's `early_stopping`, whose default is False:

| `early_stopping` | here |
|---|---|
| 'never' | WhenCertain |
| False | AtCurrentLength |
| True | WhenFull |
"""

import abc
import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t2x.decode.penalties import LengthPenalty


class Stopping(abc.ABC):
  """Subclasses are frozen dataclasses (compiled code depends on them)."""

  @abc.abstractmethod
  def done(
    self,
    worst: Float[Array, ' batch'],
    growing: Float[Array, ' batch'],
    length: Int[Array, ' batch'],
    limit: Int[Array, ' batch'],
    penalty: LengthPenalty,
  ) -> Bool[Array, ' batch']:
    """Whether nothing more enters the pool of each prompt.

    Args:
      worst: score of the worst hypothesis of a full pool; -inf while there is room in it.
      growing: log-probability of the best beam that still grows.
      length: tokens of that beam.
      limit: the most tokens that it may reach.
      penalty: how scores come from log-probabilities.
    """


@dataclasses.dataclass(frozen=True)
class WhenCertain(Stopping):
  """When no growing beam can beat the worst in the pool, whatever it continues with and however
  long it gets. Stopping so loses nothing."""

  def done(self, worst, growing, length, limit, penalty):
    return worst >= penalty.best_score(growing, length, limit)


@dataclasses.dataclass(frozen=True)
class AtCurrentLength(Stopping):
  """When the best growing beam would not beat the worst in the pool if it ended where it stands.

  With a penalty that favours long hypotheses that may be too early: one that is behind now could
  have overtaken with its length.
  """

  def done(self, worst, growing, length, limit, penalty):
    return worst >= growing / penalty.divisor(length)


@dataclasses.dataclass(frozen=True)
class WhenFull(Stopping):
  """When the pool is full, whatever is still growing: the fastest."""

  def done(self, worst, growing, length, limit, penalty):
    return jnp.isfinite(worst)
