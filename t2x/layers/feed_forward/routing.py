"""Which experts process a token: the interface, top-k routing, expert choice."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.hyperparameters import scalar
from t2x.base.ranges import Positive, Size, TunableNonNegative, TunableRate
from t2x.layers.arrays import Leaf
from t2x.layers.dtypes import Dtypes, exact_einsum
from t2x.layers.feed_forward.balancing import Choices, LoadBias, RouterLoss, RowBalance
from t2x.layers.initializers import lecun_normal
from t2x.layers.interfaces import NO_AUX, Aux, Call
from t2x.layers.keys import named_key, uniform
from t2x.layers.parameters import Initializer, param
from t2x.layers.tokens import Tokens

__all__ = [
  'ByChance',
  'ExpertChoice',
  'Router',
  'Routing',
  'Selection',
  'TopK',
  'WithinGroups',
  'softmax',
]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Routing:
  """The experts of each token.

  Attributes:
    expert: index of each chosen expert, the most important first; the number of experts is no expert.
    weight: factor of the output of each chosen expert, float32.
    aux: auxiliary losses and metrics of the router.
  """

  expert: Leaf  # Int[Array, 'batch length choices']
  weight: Leaf  # Float[Array, 'batch length choices']
  aux: Aux = NO_AUX


@runtime_checkable
class Router(Protocol):
  """Chooses the experts of each token. Built as `Router(d_model, num_experts, rngs=rngs)`."""

  @property
  def is_causal(self) -> bool:
    """Whether the experts of a token and their weights depend on no later token."""
    ...

  @property
  def num_choices(self) -> float | None:
    """Mean number of experts of a token; None: the number of indices that a call returns."""
    ...

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Routing:
    """Returns the experts of each token. Those of padding have no effect, but count in no loss and no metric."""
    ...


@runtime_checkable
class Selection(Protocol):
  """Chooses the experts with the highest scores."""

  def __call__(self, scores: Float[Array, '*rest experts'], k: int) -> Int[Array, '*rest k']:
    """Returns the indices of k experts, the best first."""
    ...


def softmax(x: Float[Array, '*rest experts']) -> Float[Array, '*rest experts']:
  """Exponentials divided by their sum over the last dimension."""
  return jax.nn.softmax(x, axis=-1)


def highest(scores: Float[Array, '*rest experts'], k: int) -> Int[Array, '*rest k']:
  """Returns the indices of the k highest scores, the highest first, of equal ones the first.

  Not by `jax.lax.top_k`, for which each device gathers the scores of the whole batch.
  """
  rest, indices = jax.lax.stop_gradient(scores), []
  for _ in range(k):
    indices.append(rest.argmax(axis=-1))
    rest = jnp.where(jax.nn.one_hot(indices[-1], scores.shape[-1], dtype=bool), -jnp.inf, rest)
  return jnp.stack(indices, axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithinGroups(Selection):
  """The highest scores within the best groups of experts, so that the experts of a token are on few devices
  (https://arxiv.org/abs/2405.04434, section 2.2.2; with best = 2 https://arxiv.org/abs/2412.19437, section 2.1.2).

  Attributes:
    num_groups: number of groups of successive experts.
    num_chosen: number of groups of a token.
    best: number of highest scores whose sum is the score of a group.
  """

  num_groups: Size
  num_chosen: Size
  best: Size = 2

  def __call__(self, scores, k):
    num_experts = scores.shape[-1]
    size, rest = divmod(num_experts, self.num_groups)
    if rest or self.best > size or not k <= self.num_chosen * size <= num_experts:
      raise UserError(
        f'{self} does not fit {k} of {num_experts} experts: num_groups must divide {num_experts}, best must be at most '
        'the size of a group, and the chosen groups need at least as many experts as a token has'
      )
    groups = scores.reshape(*scores.shape[:-1], self.num_groups, size)
    best = jnp.take_along_axis(groups, highest(groups, self.best), axis=-1).sum(axis=-1)
    chosen = jax.nn.one_hot(highest(best, self.num_chosen), self.num_groups, dtype=bool).any(
      axis=-2
    )
    return highest(jnp.where(chosen[..., None], groups, -jnp.inf).reshape(scores.shape), k)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByChance:
  """Leaves out the second and further experts of a token at random in training (https://arxiv.org/abs/2006.16668,
  algorithm 1): each is used with the probability weight / threshold, at most 1.

  Attributes:
    threshold: weight from which an expert is always used: 1/2 in GShard, 0.2 in Mesh TensorFlow.
  """

  threshold: Positive = 0.5

  def __call__(
    self,
    expert: Int[Array, 'batch length choices'],
    weight: Float[Array, 'batch length choices'],
    num_experts: int,
    key: Array | None,
  ) -> Int[Array, 'batch length choices']:
    """Returns `expert` with `num_experts` in place of the experts that are left out; all of them without a key."""
    if key is None:
      return expert
    used = uniform(key, weight.shape) < jax.lax.stop_gradient(weight) / self.threshold
    return jnp.where(used.at[..., 0].set(True), expert, num_experts)


class ScoringRouter(nnx.Module):
  """Base class of routers that compare a linear map of a token's vector with each expert.

  Args:
    d_model: width of the input.
    num_experts: number of experts.
    scoring: maps the scores of a token to the affinities of the experts: `softmax` or `sigmoid`.
    jitter: in training the input of the router, not that of the experts, is multiplied with random numbers from
      1 - jitter to 1 + jitter (https://arxiv.org/abs/2101.03961, section 2.2).
    kernel_init: initialiser of the projection to a score for each expert.
  """

  implements = (Router,)
  is_causal: bool = True
  num_choices: float | None = None

  def __init__(
    self,
    d_model: int,
    num_experts: int,
    *,
    scoring: Callable[[Array], Array] = softmax,
    jitter: TunableRate = 0.0,
    kernel_init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    self.scoring, self.jitter = scoring, jitter
    # The scores are not split over experts: their softmax needs all of them.
    shape, axes = (d_model, num_experts), ('embed', 'choices')
    self.kernel = param(kernel_init, shape, axes, rngs, matrix=shape, keep_float32=True)

  def scores(
    self, x: Float[Array, 'batch length d_model'], call: Call
  ) -> Float[Array, 'batch length experts']:
    """Returns the score of each expert in float32."""
    x, key = x.astype(Dtypes.softmax), named_key(call.key, 'jitter')
    if key is not None and self.jitter != 0.0:
      x = x * (1 + scalar(self.jitter) * (2 * uniform(key, x.shape) - 1))
    return exact_einsum('bld,de->ble', x, self.kernel[...].astype(Dtypes.softmax))


class TopK(ScoringRouter):
  """The k experts with the highest affinities (https://arxiv.org/abs/1701.06538; with k = 2 as in Mixtral,
  https://arxiv.org/abs/2401.04088; with sigmoid, WithinGroups and factor as in DeepSeek-V3,
  https://arxiv.org/abs/2412.19437).

  Args:
    k: number of experts of a token.
    normalise: whether the weights of the chosen experts are divided by their sum.
    factor: factor of the weights.
    selection: chooses k experts by their affinities: the highest, or `WithinGroups`.
    bias: builds what balances the load without a loss, as `bias(num_experts, rngs=rngs)`; None: nothing.
    by_chance: leaves out further experts of a token at random; None: all are used.
    balance: coefficient of the auxiliary loss `RowBalance`.
    losses: further auxiliary losses.
    **settings: see `ScoringRouter`.
  """

  def __init__(
    self,
    d_model: int,
    num_experts: int,
    *,
    k: Size = 2,
    normalise: bool = True,
    factor: Positive = 1.0,
    selection: Selection = highest,
    bias: Callable[..., LoadBias] | None = None,
    by_chance: ByChance | None = None,
    balance: TunableNonNegative = 0.01,
    losses: Sequence[RouterLoss] = (),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    if k > num_experts:
      raise UserError(f'TopK.k = {k}: must be at most {num_experts}, the number of experts')
    if k == 1 and normalise:
      raise UserError(
        'TopK.normalise = True with TopK.k = 1 sets each weight to 1, so that the router would have no gradient '
        'from the loss: set TopK.normalise = False'
      )
    if k == 1 and by_chance is not None:
      raise UserError('TopK.by_chance has no effect with TopK.k = 1: remove it')
    super().__init__(d_model, num_experts, rngs=rngs, **settings)
    self.k, self.normalise, self.factor = k, normalise, factor
    self.selection, self.by_chance = selection, by_chance
    self.balance, self.losses = balance, tuple(losses)
    self.bias = bias and bias(num_experts, rngs=rngs)
    jax.eval_shape(lambda: selection(jnp.zeros(num_experts), k))  # It checks its settings.

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Routing:
    scores = self.scores(x, call)
    affinity = self.scoring(scores)
    preferred = affinity if self.bias is None else self.bias(affinity)
    expert = self.selection(jax.lax.stop_gradient(preferred), self.k)
    weight = jnp.take_along_axis(affinity, expert, axis=-1)
    if self.normalise:
      total = weight.sum(axis=-1, keepdims=True)
      weight = weight / jnp.maximum(total, jnp.finfo(total.dtype).tiny)
    choices, aux = Choices(scores, affinity, expert, present(call.tokens, x)), NO_AUX
    if self.bias is not None:
      weight = self.bias.reported(weight, choices)
    for loss in (RowBalance(coefficient=self.balance), *self.losses):
      aux += loss(choices)
    if self.by_chance is not None:
      key = named_key(call.key, 'by_chance')
      expert = self.by_chance(expert, weight, scores.shape[-1], key)
    return Routing(expert, weight * self.factor, aux)


class ExpertChoice(ScoringRouter):
  """Each expert chooses the tokens with the highest affinity (https://arxiv.org/abs/2202.09368), so that all experts
  process the same number of tokens, and tokens have different numbers of experts.

  An expert chooses factor / num_experts of the tokens of each segment, rounded up; `Capacity(factor=F)` with
  F = factor / num_experts has slots for them if a row is one segment. Later tokens change the experts of earlier ones.

  Args:
    factor: mean number of experts of a token.
    **settings: see `ScoringRouter`.
  """

  is_causal = False

  def __init__(
    self, d_model: int, num_experts: int, *, factor: Positive = 2.0, rngs: nnx.Rngs, **settings: Any
  ):
    if factor > num_experts:
      raise UserError(
        f'ExpertChoice.factor = {factor}: must be at most {num_experts}, the number of experts'
      )
    super().__init__(d_model, num_experts, rngs=rngs, **settings)
    self.factor = self.num_choices = factor

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Routing:
    affinity = self.scoring(self.scores(x, call))
    _, length, num_experts = affinity.shape
    segments = jnp.broadcast_to(call.tokens.row_segments, x.shape[:2])
    rank, size = ranks(jax.lax.stop_gradient(affinity), segments)
    number = jnp.asarray([math.ceil(self.factor * n / num_experts) for n in range(length + 1)])
    chosen = rank < number[size][..., None]
    return Routing(jnp.where(chosen, jnp.arange(num_experts), num_experts), affinity)


def ranks(
  scores: Float[Array, 'batch length experts'], segments: Int[Array, 'batch length']
) -> tuple[Int[Array, 'batch length experts'], Int[Array, 'batch length']]:
  """Returns the rank of each score in its segment, 0 for the highest, and the number of tokens of the segment."""
  whole = jnp.broadcast_to(segments[..., None], scores.shape)
  index = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
  *_, order = jax.lax.sort((whole, -scores, index), dimension=1, num_keys=2)
  place, (own, other) = jnp.argsort(order, axis=1), (segments[:, :, None], segments[:, None, :])
  first, size = (other < own).sum(axis=-1), (other == own).sum(axis=-1)
  return place - first[..., None], size


def present(tokens: Tokens, x: Float[Array, 'batch length d_model']) -> Bool[Array, 'batch length']:
  """Returns which tokens are no padding."""
  return jnp.broadcast_to(tokens.present, x.shape[:2])
