"""Balances the experts of a mixture and keeps the scores of its router small: auxiliary losses, and a bias that follows
the load without a loss."""

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.hyperparameters import scalar
from t2x.base.ranges import Size, TunableNonNegative
from t2x.base.step import check_whole_batch
from t2x.layers.initializers import zeros
from t2x.layers.interfaces import Aux
from t2x.layers.parameters import param
from t2x.layers.rules import Rule, reported

__all__ = ['BatchBalance', 'Choices', 'LoadBias', 'RouterLoss', 'RowBalance', 'ZLoss']


@dataclasses.dataclass(frozen=True)
class Choices:
  """The choices of a router whose tokens choose their experts.

  Attributes:
    scores: the score of each expert, before softmax or sigmoid.
    affinity: softmax or sigmoid of the scores.
    expert: index of each chosen expert, the best first.
    present: which tokens are no padding.
  """

  scores: Float[Array, 'batch length experts']
  affinity: Float[Array, 'batch length experts']
  expert: Int[Array, 'batch length choices']
  present: Bool[Array, 'batch length']

  @property
  def num_experts(self) -> int:
    return self.scores.shape[-1]

  @property
  def num_tokens(self) -> Float[Array, ' batch']:
    """Number of tokens of each row without padding."""
    return self.present.sum(axis=1, dtype=jnp.float32)

  def counts(self, num_choices: int | None = None) -> Float[Array, 'batch experts']:
    """Returns how often the tokens of each row chose each expert, with their best `num_choices` or all choices."""
    expert = jnp.where(self.present[..., None], self.expert, self.num_experts)
    return counts(expert[..., :num_choices], self.num_experts)

  def probabilities(self) -> Float[Array, 'batch experts']:
    """Returns the sum over the tokens of each row of the probability of each expert, the affinity divided by the sum
    over the experts."""
    probability = self.affinity / self.affinity.sum(axis=-1, keepdims=True)
    return (probability * self.present[..., None]).sum(axis=1)


def counts(
  expert: Int[Array, 'batch length choices'], num_experts: int
) -> Float[Array, 'batch experts']:
  """Returns how often each row chose each expert; the index `num_experts` is no expert."""
  return jax.nn.one_hot(expert, num_experts).sum(axis=(1, 2))


def load_metrics(load: Float[Array, 'batch experts']) -> Aux:
  """Returns how unequally each row uses the experts, as means over the rows that have tokens.

  'busiest_expert' is the load of the busiest expert relative to the mean load: 1 if all are equal, at most the number
  of experts; `Capacity` of this factor drops nothing of such a row. 'unused_experts' is the fraction of experts that no
  token of a row chose. Sums over rows, so that they do not depend on micro-batches and devices.

  Args:
    load: number of choices of each expert.
  """
  used = load.sum(axis=-1) > 0
  relative = load.max(axis=-1) / jnp.maximum(load.mean(axis=-1), jnp.finfo(load.dtype).tiny)
  unused = (load == 0).mean(axis=-1) * used
  weight = used.sum(dtype=load.dtype)
  return Aux(
    metrics={'busiest_expert': (relative.sum(), weight), 'unused_experts': (unused.sum(), weight)}
  )


@runtime_checkable
class RouterLoss(Protocol):
  """Auxiliary loss of a router."""

  def __call__(self, choices: Choices) -> Aux:
    """Returns one loss per row [batch], with its coefficient, under a name, and metrics."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowBalance(RouterLoss):
  """'balance': num_experts times the sum over experts of (share of the choices * mean probability) in a row, which is 1
  for a uniform distribution (https://arxiv.org/abs/2101.03961, equation 4, for any number of choices).

  Attributes:
    coefficient: factor of the loss.
    num_choices: number of choices of a token that count, the best first: 1 in GShard
      (https://arxiv.org/abs/2006.16668). None: all.
  """

  coefficient: TunableNonNegative = 0.01
  num_choices: Size | None = None

  def __call__(self, choices):
    k = self.num_choices or choices.expert.shape[-1]
    num_tokens = jnp.maximum(choices.num_tokens, 1)[:, None]
    share = choices.counts(k) / (k * num_tokens)
    mean = choices.probabilities() / num_tokens
    loss = choices.num_experts * (share * mean).sum(axis=-1)
    return Aux({'balance': scalar(self.coefficient) * loss})


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchBalance(RouterLoss):
  """'batch_balance': the loss of `RowBalance` with shares and mean probabilities of all tokens of the
  batch, so that rows may use different experts (https://arxiv.org/abs/2501.11873). Refused if a step splits
  the batch into micro-batches.

  Attributes:
    coefficient: factor of the loss.
  """

  coefficient: TunableNonNegative = 0.01

  def __call__(self, choices):
    check_whole_batch('BatchBalance compares', 'use RowBalance or LoadBias')
    k, num_tokens = choices.expert.shape[-1], jnp.maximum(choices.num_tokens.sum(), 1)
    share = choices.counts().sum(axis=0) / (k * num_tokens)
    mean = choices.probabilities().sum(axis=0) / num_tokens
    loss = scalar(self.coefficient) * choices.num_experts * (share * mean).sum()
    return Aux({'batch_balance': jnp.broadcast_to(loss, choices.present.shape[:1])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZLoss(RouterLoss):
  """'router_z': mean over the tokens of a row of the squared logarithm of the sum of exp(scores)
  (https://arxiv.org/abs/2202.08906, equation 5), which keeps the scores small.

  Attributes:
    coefficient: factor of the loss.
  """

  coefficient: TunableNonNegative = 1e-3

  def __call__(self, choices):
    squares = jnp.square(jax.nn.logsumexp(choices.scores, axis=-1)) * choices.present
    mean = squares.sum(axis=1) / jnp.maximum(choices.num_tokens, 1)
    return Aux({'router_z': scalar(self.coefficient) * mean})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadRule(Rule):
  """Raises the bias of experts with less than the mean load by `rate`, and lowers that of experts with more.

  Attributes:
    rate: change of a bias per step.
  """

  rate: TunableNonNegative

  def __call__(self, value, statistic):
    return value + scalar(self.rate) * jnp.sign(statistic.mean() - statistic)


class LoadBias(nnx.Module):
  """A bias of each expert that is added to the affinities for the choice of experts, not for their weights, and that
  the load moves without a loss (https://arxiv.org/abs/2408.15664; DeepSeek-V3, https://arxiv.org/abs/2412.19437).

  The load of an expert is the number of tokens of a step, over all micro-batches and devices, that choose it.

  Args:
    num_experts: number of experts.
    rate: change of a bias per step.
  """

  def __init__(self, num_experts: int, *, rate: TunableNonNegative = 1e-3, rngs: nnx.Rngs):
    rule = LoadRule(rate=rate)
    self.bias = param(zeros(), (num_experts,), ('choices',), rngs, kind='rule', rule=rule)

  def __call__(self, affinity: Float[Array, '*rest experts']) -> Float[Array, '*rest experts']:
    """Returns the affinities by which experts are chosen."""
    bias = jax.lax.stop_gradient(self.bias[...])
    return affinity + bias.reshape(*[1] * (affinity.ndim - 1), -1)

  def reported(
    self, weight: Float[Array, 'batch length choices'], choices: Choices
  ) -> Float[Array, 'batch length choices']:
    """Returns the weights, in whose backward pass the load is added to the statistic of the bias."""
    return reported(weight, self.bias[...], choices.counts().sum(axis=0))
