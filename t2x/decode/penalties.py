"""Length penalties of beam search: the log-probability of a hypothesis is divided by them.

A sum of log-probabilities decreases with every token, so without a penalty beam search prefers short
hypotheses. The length |Y| counts generated tokens, including the end token and excluding the prompt, as
in Hugging Face (`cur_len + 1 - decoder_prompt_len`, where 1 is the end token).
"""

import abc
import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2x.base.ranges import Finite

__all__ = ['GNMT', 'AverageLength', 'LengthPenalty']


class LengthPenalty(abc.ABC):
  """score(Y) = log P(Y) / divisor(|Y|), with a positive divisor that is monotonic in |Y|."""

  @abc.abstractmethod
  def divisor(self, length: Int[Array, '*shape']) -> Float[Array, '*shape']:
    """The divisor for hypotheses of `length` tokens (1 or more)."""

  def best_score(
    self,
    log_prob: Float[Array, '*shape'],
    length: Int[Array, '*shape'],
    limit: Int[Array, '*shape'],
  ) -> Float[Array, '*shape']:
    """The upper bound of scores of the extensions of a prefix to at most `limit` tokens.

    The log-probability cannot rise above `log_prob` (at most 0) of the prefix of `length` tokens. The
    score is highest at the length with the largest divisor. Since the divisor is monotonic, that is
    either the next length or the limit.
    """
    following = jnp.minimum(length + 1, limit)
    return log_prob / jnp.maximum(self.divisor(following), self.divisor(limit))


@dataclasses.dataclass(frozen=True)
class GNMT(LengthPenalty):
  """((5 + |Y|) / 6) ** alpha, Wu et al. 2016 (https://arxiv.org/abs/1609.08144), equation 14.

  Omits the paper's coverage penalty. `alpha` 0 compares plain log-probabilities.
  """

  alpha: Finite = 0.6

  def divisor(self, length):
    return ((5.0 + length) / 6.0) ** self.alpha


@dataclasses.dataclass(frozen=True)
class AverageLength(LengthPenalty):
  """|Y| ** power; with power 1 the score is the average log-probability per token.

  Equal to Hugging Face's `length_penalty` and fairseq's `lenpen`, whose default is power 1. The
  default of `Beam` is GNMT.
  """

  power: Finite = 1.0

  def divisor(self, length):
    return jnp.asarray(length, jnp.float32) ** self.power
