"""Update rules, through optax.

Each gives a direction; what is the same for all follows it here: decoupled weight decay
(https://arxiv.org/abs/1711.05101) on matrices and tables alone, then the learning rate.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from t2x.hyperparameters import scalar
from t2x.ranges import Epsilon, Fraction, Positive, Rate, Size, TunableNonNegative
from t2x.train.params import ParamInfo
from t2x.train.schedules import Schedule, ScheduleFn

# Logical axes of tables that are looked up, and of projections from data or to the output.
NO_MATRIX = frozenset({'buckets', 'classes', 'length', 'patch', 'taps', 'types', 'vocab'})


Infos = Mapping[str, ParamInfo]


def _is_vector(info: ParamInfo) -> bool:
  """Norms and biases, also those with an axis of heads; stacked layers do not count as an axis."""
  return len(info.axes) < 2 or info.name.rpartition('.')[2] in ('bias', 'scale')


def decay_mask(infos: Infos) -> dict[str, bool]:
  """True for the parameters that weight decay pulls at: all but norms and biases."""
  return {name: not _is_vector(info) for name, info in infos.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(abc.ABC):
  """What all update rules have.

  Attributes:
    weight_decay: a step shrinks matrices and tables by learning rate * weight_decay.
  """

  weight_decay: TunableNonNegative = 0.0

  @abc.abstractmethod
  def direction(self, infos: Infos) -> optax.GradientTransformation:
    """Gradients -> what is subtracted, before decay and learning rate; both are dicts by name."""

  def build(
    self, schedule: ScheduleFn, infos: Infos, rates: Mapping[str, Any] | None = None
  ) -> optax.GradientTransformation:
    """The whole rule, for dicts of parameters by name.

    Args:
      schedule: step -> learning rate.
      infos: of the parameters that are trained; their axes and names decide what is decayed.
      rates: factors of the learning rate by name, or functions like `schedule` used in its place.
    """
    steps = [self.direction(infos)]
    if self.weight_decay != 0.0:

      def decayed(updates, params):
        decay = scalar(self.weight_decay)
        return jax.tree.map(lambda u, p: u + decay * p, updates, params)

      steps.append(optax.masked(optax.stateless(decayed), decay_mask(infos)))
    return optax.chain(*steps, _scale_by_rates(schedule, rates or {}))


def _scale_by_rates(schedule: ScheduleFn, rates: Mapping[str, Any]) -> optax.GradientTransformation:
  """Multiplies the update of each parameter by its learning rate, downhill."""

  def update(updates, state, params=None):
    base = schedule(state.count)

    def scaled(name, one):
      rate = rates.get(name, 1.0)
      rate = rate(state.count) if callable(rate) else base * rate
      return -rate.astype(one.dtype) * one

    updates = {name: scaled(name, one) for name, one in updates.items()}
    return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))

  def init(params):
    return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

  return optax.GradientTransformation(init, update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
  """Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101).

  Attributes:
    b1: decay of the mean of gradients.
    b2: decay of the mean of their squares.
    eps: added to the root of the latter.
  """

  b1: Rate = 0.9
  b2: Rate = 0.999
  eps: Epsilon = 1e-8
  weight_decay: TunableNonNegative = 0.01

  def direction(self, infos):
    return optax.scale_by_adam(self.b1, self.b2, self.eps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer):
  """Second moments kept as rows and columns (https://arxiv.org/abs/1804.04235).

  The root mean squares that clip and scale an update are those of one parameter; scanned layers
  count as one, being stacked.

  Attributes:
    min_dim_size: matrices with a smaller side are not factored.
    decay_rate: the second moment's decay at step t is 1 - t^-decay_rate.
    clip: largest root mean square of an update; None does not clip.
    scale_by_parameter: the learning rate is relative to each parameter's root mean square.
    momentum: decay of a mean of the updates; None keeps none.
    eps: added to squared gradients.
  """

  min_dim_size: Size = 128
  decay_rate: Fraction = 0.8
  clip: Positive | None = 1.0
  scale_by_parameter: bool = True
  momentum: Rate | None = None
  eps: Epsilon = 1e-30

  def direction(self, infos):
    rule = optax.adafactor(
      learning_rate=None,
      min_dim_size_to_factor=self.min_dim_size,
      decay_rate=self.decay_rate,
      multiply_by_parameter_scale=self.scale_by_parameter,
      clipping_threshold=self.clip,
      momentum=self.momentum,
      eps=self.eps,
    )
    return optax.chain(rule, optax.scale(-1))  # optax's own already points downhill.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
  """Stochastic gradient descent.

  Attributes:
    momentum: decay of the sum of gradients; 0 keeps none.
    nesterov: looks one step ahead (https://jmlr.org/proceedings/papers/v28/sutskever13.html).
  """

  momentum: Rate = 0.0
  nesterov: bool = False

  def direction(self, infos):
    return optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
  """The sign of an interpolated momentum (https://arxiv.org/abs/2302.06675).

  Wants a learning rate 3 to 10 times smaller than AdamW's, and a decay as much larger.

  Attributes:
    b1: weight of the momentum in the step.
    b2: decay of the momentum.
  """

  b1: Rate = 0.9
  b2: Rate = 0.99
  weight_decay: TunableNonNegative = 0.1

  def direction(self, infos):
    return optax.scale_by_lion(self.b1, self.b2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
  """Momentum made orthogonal for matrices (https://arxiv.org/abs/2502.16982), AdamW for the rest.

  A matrix is a projection: heads and their size are merged into the side they belong to, and each of the
  stacked layers is a matrix of its own. Tables, the last projection to a vocabulary or to classes,
  patch projections, kernels of convolutions, norms and biases are not.

  Attributes:
    momentum: decay of the mean of gradients.
    nesterov: looks one step ahead.
    num_iterations: Newton-Schulz iterations.
    rms: root mean square of a matrix's step, so that one learning rate suits both rules; None
      scales by sqrt(max(1, fan out / fan in)) as the first implementation does.
    b1: AdamW's, for the rest.
    b2: AdamW's.
    eps: AdamW's.
  """

  momentum: Rate = 0.95
  nesterov: bool = True
  num_iterations: Size = 5
  rms: Positive | None = 0.2
  b1: Rate = 0.9
  b2: Rate = 0.95
  eps: Epsilon = 1e-8
  weight_decay: TunableNonNegative = 0.1

  def direction(self, infos):
    dimensions = {name: matrix_dimensions(info) for name, info in infos.items()}
    labels = {name: 'adam' if one is None else 'muon' for name, one in dimensions.items()}
    muon = contrib.muon(
      learning_rate=-1.0,  # Up the hill: learning rate and sign come after the decay.
      ns_steps=self.num_iterations,
      beta=self.momentum,
      nesterov=self.nesterov,
      consistent_rms=self.rms,
      muon_weight_dimension_numbers=dimensions,
    )
    adam = optax.scale_by_adam(self.b1, self.b2, self.eps)
    return optax.partition({'muon': muon, 'adam': adam}, labels)


def matrix_dimensions(info: ParamInfo) -> contrib.MuonDimensionNumbers | None:
  """Which dimensions are a matrix's inputs and outputs; None when it is no matrix for Muon."""
  if _is_vector(info) or not NO_MATRIX.isdisjoint(info.axes):
    return None
  # Each expert has a matrix of its own.
  axes = info.axes[1:] if info.axes[0] == 'experts' else info.axes
  num_inputs = len(axes) - 1 if axes[-1] == 'embed' and axes[0] != 'embed' else 1
  dimensions = tuple(range(-len(axes), 0))  # From the end: stacked layers lead.
  return contrib.MuonDimensionNumbers(dimensions[:num_inputs], dimensions[num_inputs:])


def build_optimizer(
  optimizer: Optimizer,
  schedule: Schedule,
  *,
  clip_norm: float | None,
  num_steps: int,
  infos: Infos,
  rates: Mapping[str, Any] | None = None,
) -> optax.GradientTransformation:
  """Clips the gradient's global norm, then applies the update rule.

  Args:
    optimizer: the update rule.
    schedule: the learning rate by step.
    clip_norm: the largest norm; None does not clip.
    num_steps: of the run.
    infos: of the parameters that are trained.
    rates: as `Groups.rates`.
  """
  built = {
    name: rate.build(num_steps) if isinstance(rate, Schedule) else rate
    for name, rate in (rates or {}).items()
  }
  rule = optimizer.build(schedule.build(num_steps), infos, built)
  return rule if clip_norm is None else optax.chain(optax.clip_by_global_norm(clip_norm), rule)
