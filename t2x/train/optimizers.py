"""Optimizers, based on optax.

Each optimizer defines a direction. `build_optimizer` adds decoupled weight decay
(https://arxiv.org/abs/1711.05101) of matrices, tables and filters, then the learning rate.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from optax import contrib

from t2x.base.errors import UserError
from t2x.base.hyperparameters import scalar
from t2x.base.ranges import Epsilon, Fraction, Positive, Rate, Size, TunableNonNegative
from t2x.train.params import ParamInfo
from t2x.train.schedules import Schedule, ScheduleFn

__all__ = ['SGD', 'Adafactor', 'AdamW', 'Lion', 'Muon', 'Optimizer', 'build_optimizer']

Infos = Mapping[str, ParamInfo]
Axes = tuple[int, ...]

# Smallest root mean square that scales an update, so that parameters that are 0 are trained.
MIN_SCALE = 1e-3


def decay_mask(infos: Infos) -> dict[str, bool]:
  """Returns, by name, whether weight decay applies; see `t2x.layers.param`."""
  return {name: info.decayed for name, info in infos.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(abc.ABC):
  """Base class of optimizers.

  Attributes:
    weight_decay: a step reduces matrices, tables and filters by learning rate * weight_decay * value.
  """

  weight_decay: TunableNonNegative = 0.0

  # Whether the size of a direction's elements does not depend on the size of the gradient, as the rules of
  # `MuP` assume.
  elementwise: ClassVar[bool] = False

  @abc.abstractmethod
  def direction(self, infos: Infos) -> optax.GradientTransformation:
    """Returns the transformation of gradients into a direction, without weight decay and learning rate.

    The direction is subtracted from the parameters. Gradients and directions are dicts by parameter name.

    Args:
      infos: metadata of the trained parameters.
    """


def _scale_by_rates(schedule: ScheduleFn, rates: Mapping[str, Any]) -> optax.GradientTransformation:
  """Multiplies the direction of each parameter by its negative learning rate."""

  def update(updates, state, params=None):
    base = schedule(state.count)

    def scaled(name, direction):
      rate = rates.get(name, 1.0)
      rate = rate(state.count) if callable(rate) else base * rate
      return -rate.astype(direction.dtype) * direction

    updates = {name: scaled(name, direction) for name, direction in updates.items()}
    return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))

  def init(params):
    return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

  return optax.GradientTransformation(init, update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
  """Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101).

  Attributes:
    b1: decay rate of the mean of gradients.
    b2: decay rate of the mean of squared gradients.
    eps: added to the square root of the mean of squared gradients.
  """

  b1: Rate = 0.9
  b2: Rate = 0.999
  eps: Epsilon = 1e-8
  weight_decay: TunableNonNegative = 0.01

  elementwise = True

  def direction(self, infos):
    return optax.scale_by_adam(self.b1, self.b2, self.eps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer):
  """Adafactor, with second moments factored into rows and columns (https://arxiv.org/abs/1804.04235).

  As in T5, each matrix [inputs, outputs] is factored, clipped and scaled by itself: the heads of a projection are
  merged, and each layer and expert has matrices of its own. Parameters other than matrices are factored along their
  two largest dimensions in each layer.

  Attributes:
    min_dim_size: matrices with a smaller dimension are not factored.
    decay_rate: the decay rate of the second moment at step t is 1 - t^-decay_rate.
    clip: maximum root mean square of an update; None disables clipping.
    scale_by_parameter: whether the learning rate is relative to each parameter's root mean square.
    momentum: decay rate of the mean of the updates; None disables momentum.
    eps: added to squared gradients.
  """

  min_dim_size: Size = 128
  decay_rate: Fraction = 0.8
  clip: Positive | None = 1.0
  scale_by_parameter: bool = True
  momentum: Rate | None = None
  eps: Epsilon = 1e-30

  def direction(self, infos):
    steps = [
      scale_by_factored_rms(
        infos, min_dim_size=self.min_dim_size, decay_rate=self.decay_rate, eps=self.eps
      )
    ]
    if self.clip is not None:
      steps.append(clip_rms(infos, self.clip))
    if self.scale_by_parameter:
      steps.append(scale_by_param_rms(infos))
    if self.momentum is not None:
      steps.append(optax.ema(self.momentum, debias=False))
    return optax.chain(*steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
  """Stochastic gradient descent.

  Attributes:
    momentum: decay rate of the sum of gradients; 0 disables momentum.
    nesterov: uses Nesterov momentum (https://jmlr.org/proceedings/papers/v28/sutskever13.html).
  """

  momentum: Rate = 0.0
  nesterov: bool = False

  def direction(self, infos):
    return optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
  """Lion: the sign of an interpolated momentum (https://arxiv.org/abs/2302.06675).

  Compared with AdamW, use a learning rate that is 3 to 10 times smaller, and a weight decay that is larger by
  the same factor.

  Attributes:
    b1: weight of the momentum in the interpolation with the gradient.
    b2: decay rate of the momentum.
  """

  b1: Rate = 0.9
  b2: Rate = 0.99
  weight_decay: TunableNonNegative = 0.1

  elementwise = True

  def direction(self, infos):
    return optax.scale_by_lion(self.b1, self.b2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
  """Muon: orthogonalised momentum for matrices (https://arxiv.org/abs/2502.16982), AdamW for other parameters.

  Matrices are the parameters of kind 'matrix' (see `t2x.layers.param`); heads and head_dim are merged into one
  dimension, and each stacked layer, expert and head with a matrix of its own is a separate matrix. AdamW updates
  all others.

  Attributes:
    momentum: decay rate of the mean of gradients.
    nesterov: uses Nesterov momentum.
    num_iterations: number of Newton-Schulz iterations.
    rms: root mean square of the direction of a matrix, so that one learning rate suits both rules; None
      scales by sqrt(max(1, fan_out / fan_in)), as the original implementation does.
    b1: as in AdamW, for other parameters.
    b2: as in AdamW, for other parameters.
    eps: as in AdamW, for other parameters.
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
    labels = {name: 'adam' if axes is None else 'muon' for name, axes in dimensions.items()}
    muon = contrib.muon(
      learning_rate=-1.0,  # The learning rate and the sign are applied after weight decay.
      ns_steps=self.num_iterations,
      beta=self.momentum,
      nesterov=self.nesterov,
      consistent_rms=self.rms,
      muon_weight_dimension_numbers=dimensions,
    )
    adam = optax.scale_by_adam(self.b1, self.b2, self.eps)
    return optax.partition({'muon': muon, 'adam': adam}, labels)


def matrix_dimensions(info: ParamInfo) -> contrib.MuonDimensionNumbers | None:
  """Returns the input and output dimensions of a matrix; None if Muon does not apply to the parameter."""
  # A matrix with one row or column has one singular value.
  if info.kind != 'matrix' or info.matrix is None or 1 in info.matrix:
    return None
  return contrib.MuonDimensionNumbers(*info.matrix_axes)


def build_optimizer(
  optimizer: Optimizer,
  schedule: Schedule,
  *,
  clip_norm: float | None,
  num_steps: int,
  infos: Infos,
  rates: Mapping[str, Any] | None = None,
  scales: Mapping[str, float] | None = None,
) -> optax.GradientTransformation:
  """Builds the update rule of a run: clipping, direction, weight decay, learning rate.

  Args:
    optimizer: defines the direction.
    schedule: learning rate by step.
    clip_norm: maximum global norm of the gradient; None disables clipping.
    num_steps: number of steps of the run.
    infos: metadata of the trained parameters; their kind decides which ones have weight decay.
    rates: factor of the learning rate by name, or a schedule that replaces it (`Groups.rates`).
    scales: factor of the direction by name, without weight decay (`MuP`).

  Raises:
    UserError: there are `scales`, and the rule is not elementwise.
  """
  steps = [optimizer.direction(infos)]
  if scales is not None:
    if not optimizer.elementwise:
      raise UserError(
        f'Experiment.mup has no rule for the steps of {type(optimizer).__name__}: use AdamW or Lion'
      )
    steps.append(
      optax.stateless(lambda updates, _: {name: u * scales[name] for name, u in updates.items()})
    )
  if optimizer.weight_decay != 0.0:

    def decayed(updates, params):
      decay = scalar(optimizer.weight_decay)
      return jax.tree.map(lambda u, p: u + decay * p, updates, params)

    steps.append(optax.masked(optax.stateless(decayed), decay_mask(infos)))
  built = {
    name: rate.build(num_steps) if isinstance(rate, Schedule) else rate
    for name, rate in (rates or {}).items()
  }
  rule = optax.chain(*steps, _scale_by_rates(schedule.build(num_steps), built))
  return rule if clip_norm is None else optax.chain(optax.clip_by_global_norm(clip_norm), rule)


def factored_axes(info: ParamInfo, min_dim_size: int) -> tuple[Axes, Axes] | None:
  """Returns the axes of the smaller and of the larger side of each matrix.

  A parameter that is no matrix has its two largest dimensions as sides. None if the smaller side is below
  `min_dim_size`.
  """
  if info.matrix is not None:
    inputs, outputs = info.matrix_axes
    sides = sorted(zip(info.matrix, (inputs, outputs), strict=True), key=lambda side: side[0])
  else:
    first = len(info.stacked)
    order = first + np.argsort(info.shape[first:])[-2:]
    sides = [(info.shape[axis], (int(axis),)) for axis in order]
  if len(sides) < 2 or sides[0][0] < min_dim_size:
    return None
  return sides[0][1], sides[1][1]


class FactoredState(NamedTuple):
  """Moving averages of squared gradients by parameter name.

  Attributes:
    step: number of updates.
    rows: means over the larger side of each matrix, for factored parameters.
    columns: means over the smaller side, for factored parameters.
    moments: full averages, for all other parameters.
  """

  step: Array
  rows: dict[str, Array]
  columns: dict[str, Array]
  moments: dict[str, Array]


def scale_by_factored_rms(
  infos: Infos, *, min_dim_size: int, decay_rate: float, eps: float
) -> optax.GradientTransformation:
  """Divides gradients by the root of a factored estimate of their second moments.

  Args:
    infos: metadata of the trained parameters.
    min_dim_size: matrices with a smaller side are not factored.
    decay_rate: the decay rate of the second moment at step t is 1 - t^-decay_rate.
    eps: added to squared gradients.
  """
  sides = {name: factored_axes(info, min_dim_size) for name, info in infos.items()}

  def init(params):
    def zeros(side: int) -> dict[str, Array]:
      """Returns zeros for the means over a side."""
      return {
        name: jnp.zeros(np.delete(infos[name].shape, axes[side]).tolist(), params[name].dtype)
        for name, axes in sides.items()
        if axes is not None
      }

    moments = {name: jnp.zeros_like(params[name]) for name, axes in sides.items() if axes is None}
    return FactoredState(jnp.zeros([], jnp.int32), zeros(1), zeros(0), moments)

  def update(grads, state, params=None):
    decay = 1.0 - jnp.array(state.step + 1, jnp.float32) ** -decay_rate

    def average(old: Array, new: Array) -> Array:
      return (decay * old + (1.0 - decay) * new).astype(old.dtype)

    updates, rows, columns, moments = {}, {}, {}, {}
    for name, grad in grads.items():
      axes, square = sides[name], jnp.square(grad) + eps
      if axes is None:
        moments[name] = average(state.moments[name], square)
        updates[name] = grad * moments[name] ** -0.5
        continue
      smaller, larger = axes
      rows[name] = average(state.rows[name], square.mean(axis=larger))
      columns[name] = average(state.columns[name], square.mean(axis=smaller))
      row = jnp.expand_dims(rows[name], larger)
      by_row = (row / row.mean(axis=smaller, keepdims=True)) ** -0.5
      updates[name] = grad * by_row * jnp.expand_dims(columns[name] ** -0.5, smaller)
    return updates, FactoredState(optax.safe_increment(state.step), rows, columns, moments)

  return optax.GradientTransformation(init, update)


def _rms(x: Array, info: ParamInfo) -> Array:
  """Returns the root mean square of each matrix, or of each stacked copy of another parameter."""
  copies = len(info.stacked) if info.matrix is None else info.matrix_axes[0][0]
  return jnp.sqrt(jnp.square(x).mean(axis=tuple(range(copies, x.ndim)), keepdims=True))


def clip_rms(infos: Infos, threshold: float) -> optax.GradientTransformation:
  """Scales updates so that the root mean square of each matrix is at most `threshold`."""
  return optax.stateless(
    lambda updates, _: {
      name: update / jnp.maximum(1.0, _rms(update, infos[name]) / threshold)
      for name, update in updates.items()
    }
  )


def scale_by_param_rms(infos: Infos) -> optax.GradientTransformation:
  """Multiplies the update of each matrix by the root mean square of its values, at least `MIN_SCALE`."""
  return optax.stateless(
    lambda updates, params: {
      name: update * jnp.maximum(_rms(params[name], infos[name]), MIN_SCALE)
      for name, update in updates.items()
    }
  )
