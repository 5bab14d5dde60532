"""Learning rate schedules, each with a linear warm-up from 0."""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.hyperparameters import scalar
from t2x.base.ranges import Count, Fraction, LearningRate, Natural, Rate, TunableNonNegative

__all__ = ['Constant', 'Cosine', 'LinearDecay', 'ReciprocalSqrt', 'Schedule', 'WarmupStableDecay']

ScheduleFn = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
  """Base class of schedules: a linear warm-up, followed by `after_warmup`.

  Attributes:
    peak: maximum learning rate.
    warmup_steps: steps of linear growth to `peak`. Step s, from 0, has the rate peak * (s + 1) /
      (warmup_steps + 1), which is not 0 at the first step.
    warmup: the same as a share of the steps of the run, rounded to steps, so that a shorter run has a shorter
      warm-up.
  """

  peak: LearningRate = 1e-3
  warmup_steps: Natural = 0
  warmup: Rate = 0.0

  def __post_init__(self):
    name = type(self).__name__
    if self.warmup_steps < 0:
      raise UserError(f'{name}.warmup_steps = {self.warmup_steps}: must be at least 0')
    if not 0 <= self.warmup < 1:
      raise UserError(f'{name}.warmup = {self.warmup}: must be at least 0 and below 1')
    if self.warmup and self.warmup_steps:
      raise UserError(
        f'{name}.warmup = {self.warmup} is a share of the steps and {name}.warmup_steps = {self.warmup_steps} '
        'a number: set one of them to 0'
      )

  @abc.abstractmethod
  def after_warmup(self, step: jax.Array | float, num_steps: int) -> Any:
    """Returns the learning rate after the warm-up.

    Args:
      step: number of steps since the warm-up, float32 of any shape.
      num_steps: number of steps of the run after the warm-up.
    """

  def build(self, num_steps: int) -> ScheduleFn:
    """Returns the schedule of a run as a function: step, from 0 -> learning rate, float32 of the same shape.

    Args:
      num_steps: number of steps of the run.

    Raises:
      UserError: the warm-up is longer than the run.
    """
    if self.warmup:
      steps = round(self.warmup * num_steps)
      return dataclasses.replace(self, warmup_steps=steps, warmup=0.0).build(num_steps)
    if self.warmup_steps > num_steps:
      raise UserError(
        f'{type(self).__name__}.warmup_steps = {self.warmup_steps} is more than '
        f'the {num_steps} steps of the run: reduce it'
      )

    def schedule(step):
      step = jnp.asarray(step, jnp.float32)
      warmup = scalar(self.peak) * (step + 1) / (self.warmup_steps + 1)
      after = jnp.maximum(step - self.warmup_steps, 0)
      decay = self.after_warmup(after, num_steps - self.warmup_steps)
      return jnp.where(step < self.warmup_steps, warmup, decay).astype(jnp.float32)

    return schedule


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
  """Constant learning rate `peak`."""

  def after_warmup(self, step, num_steps):
    return jnp.full_like(step, scalar(self.peak))


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
  """Cosine decay from `peak` to `end` (https://arxiv.org/abs/1608.03983)."""

  end: TunableNonNegative = 0.0

  def after_warmup(self, step, num_steps):
    peak, end = scalar(self.peak), scalar(self.end)
    cosine = 0.5 * (1 + jnp.cos(math.pi * _progress(step, num_steps)))
    return end + (peak - end) * cosine


@dataclasses.dataclass(frozen=True)
class LinearDecay(Schedule):
  """Linear decay from `peak` to `end`."""

  end: TunableNonNegative = 0.0

  def after_warmup(self, step, num_steps):
    peak, end = scalar(self.peak), scalar(self.end)
    return peak + (end - peak) * _progress(step, num_steps)


@dataclasses.dataclass(frozen=True)
class ReciprocalSqrt(Schedule):
  """Decay with the reciprocal square root of the step (https://arxiv.org/abs/1706.03762 section 5.3, T5).

  The rate s steps after the warm-up is max(end, peak * sqrt(timescale / (timescale + s))).

  Attributes:
    end: minimum learning rate.
    timescale: see the formula; None for the steps of the warm-up.
  """

  end: TunableNonNegative = 0.0
  timescale: Count | None = None

  def after_warmup(self, step, num_steps):
    scale = max(self.warmup_steps, 1) if self.timescale is None else self.timescale
    rate = scalar(self.peak) * jnp.sqrt(scale / (scale + step))
    return jnp.maximum(rate, jnp.full_like(rate, scalar(self.end)))


@dataclasses.dataclass(frozen=True)
class WarmupStableDecay(Schedule):
  """Constant rate `peak`, then a decay to `end` (https://arxiv.org/abs/2404.06395).

  Attributes:
    end: learning rate after the last step.
    decay_fraction: fraction of the steps of the run, at its end, in which the rate decays.
    sqrt: decays as 1 - sqrt(x) (https://arxiv.org/abs/2405.18392) instead of 1 - x.
  """

  end: TunableNonNegative = 0.0
  decay_fraction: Fraction = 0.2
  sqrt: bool = False

  def __post_init__(self):
    super().__post_init__()
    if not 0 <= self.decay_fraction <= 1:
      raise UserError(
        f'WarmupStableDecay.decay_fraction = {self.decay_fraction}: must be from 0 to 1'
      )

  def after_warmup(self, step, num_steps):
    peak, end = scalar(self.peak), scalar(self.end)
    total_steps = num_steps + self.warmup_steps
    decay_steps = min(round(self.decay_fraction * total_steps), num_steps)
    x = _progress(jnp.maximum(step - (num_steps - decay_steps), 0), decay_steps)
    x = jnp.sqrt(x) if self.sqrt else x
    return peak + (end - peak) * x


def _progress(step: jax.Array | float, num_steps: int) -> jax.Array:
  """Returns the fraction of `num_steps` that is done, from 0 to 1."""
  return jnp.clip(step / max(num_steps, 1), 0, 1)
