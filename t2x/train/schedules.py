"""Learning rate by step. All warm up linearly from 0 and then differ."""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from t2x.errors import UserError
from t2x.hyperparameters import scalar
from t2x.ranges import Count, Fraction, LearningRate, Natural, TunableNonNegative

ScheduleFn = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
  """What all schedules have.

  Attributes:
    peak: the largest learning rate.
    warmup_steps: steps of linear growth to `peak`. Step s of them uses peak * (s + 1) /
      (warmup_steps + 1), so that the first step already moves.
  """

  peak: LearningRate = 1e-3
  warmup_steps: Natural = 0

  def __post_init__(self):
    if self.warmup_steps < 0:
      raise UserError(f'{type(self).__name__}.warmup_steps = {self.warmup_steps}: must be >= 0')

  @abc.abstractmethod
  def after_warmup(self, step: Any, num_steps: int) -> Any:
    """Learning rate `step` >= 0 (float) steps after the warm-up, `num_steps` of them in all."""

  def build(self, num_steps: int) -> ScheduleFn:
    """step (from 0; a number or an array) -> learning rate (scalar array), for `num_steps` steps.

    Raises:
      UserError: a warm-up longer than the run.
    """
    if self.warmup_steps > num_steps:
      raise UserError(
        f'{type(self).__name__}.warmup_steps = {self.warmup_steps} is more than '
        f'the {num_steps} steps of the run'
      )

    def schedule(step):
      step = jnp.asarray(step, jnp.float32)
      rising = scalar(self.peak) * (step + 1) / (self.warmup_steps + 1)
      after = jnp.maximum(step - self.warmup_steps, 0)
      falling = self.after_warmup(after, num_steps - self.warmup_steps)
      return jnp.where(step < self.warmup_steps, rising, falling).astype(jnp.float32)

    return schedule


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
  """`peak` to the end."""

  def after_warmup(self, step, num_steps):
    return jnp.full_like(step, scalar(self.peak))


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
  """Half a cosine from `peak` to `end` (https://arxiv.org/abs/1608.03983)."""

  end: TunableNonNegative = 0.0

  def after_warmup(self, step, num_steps):
    peak, end = scalar(self.peak), scalar(self.end)
    cosine = 0.5 * (1 + jnp.cos(math.pi * _progress(step, num_steps)))
    return end + (peak - end) * cosine


@dataclasses.dataclass(frozen=True)
class LinearDecay(Schedule):
  """A straight line from `peak` to `end`."""

  end: TunableNonNegative = 0.0

  def after_warmup(self, step, num_steps):
    peak, end = scalar(self.peak), scalar(self.end)
    return peak + (end - peak) * _progress(step, num_steps)


@dataclasses.dataclass(frozen=True)
class ReciprocalSqrt(Schedule):
  """peak * sqrt(w / (w + steps after the warm-up)), never below `end`; w is `timescale`, or
  `warmup_steps` without one (https://arxiv.org/abs/1706.03762 section 5.3, T5)."""

  end: TunableNonNegative = 0.0
  timescale: Count | None = None

  def after_warmup(self, step, num_steps):
    scale = max(self.warmup_steps, 1) if self.timescale is None else self.timescale
    rate = scalar(self.peak) * jnp.sqrt(scale / (scale + step))
    return jnp.maximum(rate, jnp.full_like(rate, scalar(self.end)))


@dataclasses.dataclass(frozen=True)
class WarmupStableDecay(Schedule):
  """`peak` for most of the run, then down to `end` (https://arxiv.org/abs/2404.06395).

  Attributes:
    decay_fraction: part of the steps of the run, at its end, that decay.
    end: learning rate after the last step.
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
    whole = num_steps + self.warmup_steps
    decay_steps = min(round(self.decay_fraction * whole), num_steps)
    x = _progress(jnp.maximum(step - (num_steps - decay_steps), 0), decay_steps)
    x = jnp.sqrt(x) if self.sqrt else x
    return peak + (end - peak) * x


def _progress(step: Any, num_steps: int) -> Any:
  """From 0 to 1 over `num_steps`."""
  return jnp.clip(step / max(num_steps, 1), 0, 1)
