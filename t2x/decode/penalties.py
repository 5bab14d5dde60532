"""Length penalties: what the log-probability of a hypothesis is divided by to compare it with
others of another length.

A sum of log-probabilities falls with every token, so without a penalty beam search prefers short
hypotheses. The length |Y| counts the generated tokens, the end token included, the prompt not. That
is Hugging Face's count too (`cur_len + 1 - decoder_prompt_len`, the 1 being the end token).
"""

import abc
import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2x.ranges import Finite


class LengthPenalty(abc.ABC):
  """score(Y) = log P(Y) / divisor(|Y|), with a positive divisor that is monotonic in |Y|."""

  @abc.abstractmethod
  def divisor(self, length: Int[Array, '*shape']) -> Float[Array, '*shape']:
    """What to divide by for hypotheses of `length` tokens (1 or more)."""

  def best_score(
    self,
    log_prob: Float[Array, '*shape'],
    length: Int[Array, '*shape'],
    limit: Int[Array, '*shape'],
  ) -> Float[Array, '*shape']:
    """No hypothesis that extends one of `length` tokens to at most `limit` scores above this.

    Its log-probability can only fall from `log_prob` (not above 0), and of all lengths that it may
    still reach, the one with the largest divisor is kindest. The divisor is monotonic: that is
    either the next length or the last.
    """
    following = jnp.minimum(length + 1, limit)
    return log_prob / jnp.maximum(self.divisor(following), self.divisor(limit))


@dataclasses.dataclass(frozen=True)
class GNMT(LengthPenalty):
  """((5 + |Y|) / 6) ** alpha, Wu et al. 2016 (https://arxiv.org/abs/1609.08144), equation 14.

  Their coverage penalty is left out. `alpha` 0 compares plain log-probabilities.
  """

  alpha: Finite = 0.6

  def divisor(self, length):
    return ((5.0 + length) / 6.0) ** self.alpha


@dataclasses.dataclass(frozen=True)
class AverageLength(LengthPenalty):
  """|Y| ** power: with power 1 the average log-probability of a token.

  The definition of Hugging Face's `length_penalty` and fairseq's `lenpen`, whose default is power 1;
  that of `Beam` is GNMT.
  """

  power: Finite = 1.0

  def divisor(self, length):
    return jnp.asarray(length, jnp.float32) ** self.power
