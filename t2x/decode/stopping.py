"""Stopping criteria of beam search: when the pool of finished hypotheses of a prompt is final.

They correspond to Hugging Face's `early_stopping`, whose default is False:

| `early_stopping` | t2x |
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

__all__ = ['AtCurrentLength', 'Stopping', 'WhenCertain', 'WhenFull']


class Stopping(abc.ABC):
  """Base of stopping criteria. Subclasses are frozen dataclasses because jit treats them as static."""

  @abc.abstractmethod
  def done(
    self,
    worst: Float[Array, ' batch'],
    growing: Float[Array, ' batch'],
    length: Int[Array, ' batch'],
    limit: Int[Array, ' batch'],
    penalty: LengthPenalty,
  ) -> Bool[Array, ' batch']:
    """Returns whether the pool of each prompt is final.

    Args:
      worst: score of the worst hypothesis of a full pool; -inf if the pool is not full.
      growing: log-probability of the best unfinished beam.
      length: number of tokens of that beam.
      limit: maximum number of tokens of a hypothesis.
      penalty: the length penalty of the scores.
    """


@dataclasses.dataclass(frozen=True)
class WhenCertain(Stopping):
  """Stops when no continuation of any length can score above the worst hypothesis in the pool.

  This never changes the result.
  """

  def done(self, worst, growing, length, limit, penalty):
    return worst >= penalty.best_score(growing, length, limit)


@dataclasses.dataclass(frozen=True)
class AtCurrentLength(Stopping):
  """Stops when the best unfinished beam, scored at its current length, is not above the worst
  hypothesis in the pool.

  With a penalty that favours long hypotheses this may be too early, because a longer continuation
  could score higher.
  """

  def done(self, worst, growing, length, limit, penalty):
    return worst >= growing / penalty.divisor(length)


@dataclasses.dataclass(frozen=True)
class WhenFull(Stopping):
  """Stops when the pool is full: the fastest criterion."""

  def done(self, worst, growing, length, limit, penalty):
    return jnp.isfinite(worst)
