"""Handles non-finite losses and gradients, and loss spikes.

Rolling back to a checkpoint before a loss spike and skipping the batches of the spike follows PaLM
(Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, section 5.1).
"""

import abc
import collections
import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Positive
from t2x.models.losses import Sums

__all__ = ['Rollback', 'Skip', 'Stop']

log = logging.getLogger('t2x')


@dataclasses.dataclass(frozen=True)
class OnNonFinite(abc.ABC):
  """Handles steps whose loss or gradient is not finite."""

  def tolerates(self, in_a_row: int) -> bool:
    """Returns whether training continues after this number of consecutive non-finite steps."""
    return False

  @abc.abstractmethod
  def select(self, finite: object, new: object, old: object) -> Any:
    """Selects the state to continue with. Runs on the device, inside the train step.

    Args:
      finite: whether the loss and the gradient are finite, bool [].
      new: the state after the step, or a part of it.
      old: the state before the step.
    """

  def count(self, finite: object, sums: Sums) -> Sums:
    """Returns the sums that the step adds to its log interval. Runs on the device."""
    return sums


@dataclasses.dataclass(frozen=True)
class Stop(OnNonFinite):
  """Ends the run at the first non-finite step and reports its loss terms and gradients."""

  def select(self, finite, new, old):
    """Returns the new state, which is never saved if it is not finite."""
    return new


@dataclasses.dataclass(frozen=True)
class Skip(OnNonFinite):
  """Discards the update of a non-finite step and continues.

  The metric `skipped` is the fraction of such steps.

  Attributes:
    limit: maximum number of consecutive skipped steps; one more ends the run.
  """

  limit: Count = 10

  def tolerates(self, in_a_row):
    return in_a_row <= self.limit

  def select(self, finite, new, old):
    """Returns the old state if the step is not finite."""
    return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

  def count(self, finite, sums):
    """Gives a skipped step the weight 0 and adds the metric `skipped`."""
    finite_sums = jax.tree.map(lambda a: jnp.where(finite, a, 0.0), sums)
    return finite_sums | {'skipped': (1.0 - finite, jnp.ones(()))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollback:
  """Detects loss spikes; restores the last checkpoint before a spike and skips the spike's batches.

  Attributes:
    window: number of previous losses with which a loss is compared.
    threshold: a loss is an outlier if it is this far above their median, in robust standard deviations
      (1.4826 times the median absolute deviation).
    patience: number of consecutive outliers that are a spike.
    limit: maximum number of rollbacks in a run.
  """

  window: Count = 200
  threshold: Positive = 8.0
  patience: Count = 3
  limit: Count = 5


class Fault(UserError):
  """A step whose loss or gradient is not finite.

  Attributes:
    step: the first of the consecutive non-finite steps.
    details: step, loss terms and non-finite gradients, as JSON values.
  """

  def __init__(self, message: str, step: int, details: Mapping[str, Any]):
    super().__init__(message, exit_code=1)
    self.step, self.details = step, dict(details)


class Spike(Exception):
  """A loss spike from step `first` to step `last`."""

  def __init__(self, first: int, last: int):
    super().__init__(f'loss spike at steps {first} to {last}')
    self.first, self.last = first, last


class Faults:
  """Detects non-finite steps and loss spikes.

  `check` is called once per step, in order, some steps after the step was run.

  Args:
    names: parameter names, in the order of the gradient norms.
    nonfinite: which non-finite steps are tolerated.
    rollback: the definition of a spike; None disables spike detection.

  Attributes:
    num_skipped: number of tolerated non-finite steps, which the optimizer skipped.
  """

  def __init__(self, names: Sequence[str], nonfinite: OnNonFinite, rollback: Rollback | None):
    self.names, self.nonfinite, self.rollback = list(names), nonfinite, rollback
    self.in_a_row = self.num_skipped = 0
    self.leaps = 0
    window = rollback.window if rollback else 1
    self.losses: collections.deque[float] = collections.deque(maxlen=window)

  def state(self) -> dict[str, Any]:
    """Returns the JSON-compatible state that `restore` takes."""
    counts = {'in_a_row': self.in_a_row, 'num_skipped': self.num_skipped, 'leaps': self.leaps}
    return counts | {'losses': list(self.losses)}

  def restore(self, saved: Mapping[str, Any]) -> None:
    """Restores the result of `state`."""
    self.in_a_row, self.leaps = saved.get('in_a_row', 0), saved.get('leaps', 0)
    self.num_skipped = saved.get('num_skipped', 0)
    self.losses.extend(saved.get('losses', ()))

  def check(self, step: int, finite: bool, sums: Mapping[str, Any], norms: object) -> None:
    """Checks the results of a step, on the host.

    Args:
      step: number of the step.
      finite: whether the loss and the gradient are finite, as computed by the train step.
      sums: (sum, weight) of the loss and the metrics.
      norms: the gradient norm of each parameter, [num_params].

    Raises:
      Fault: the number of consecutive non-finite steps is not tolerated.
      Spike: the step completes a loss spike.
    """
    if not finite:
      self.in_a_row += 1
      if not self.nonfinite.tolerates(self.in_a_row):
        raise self._fault(step, sums, np.asarray(norms))
      self.num_skipped += 1
      return
    self.in_a_row = 0
    loss = _mean(sums['loss'])
    # A batch of weight 0 has no loss.
    if self.rollback is not None and not math.isnan(loss):
      self._check_spike(step, loss, self.rollback)

  def _check_spike(self, step: int, loss: float, rollback: Rollback) -> None:
    if len(self.losses) >= min(rollback.window, 20):
      losses = np.array(self.losses)
      median = np.median(losses)
      deviation = 1.4826 * np.median(np.abs(losses - median))
      if loss > median + rollback.threshold * max(deviation, 1e-3 * abs(median)):
        self.leaps += 1
        if self.leaps >= rollback.patience:
          raise Spike(step - self.leaps + 1, step)
        return
    self.leaps = 0
    self.losses.append(loss)

  def _fault(self, step: int, sums: Mapping[str, Any], norms: np.ndarray) -> Fault:
    first = step - self.in_a_row + 1
    terms = {name: _mean(pair) for name, pair in sums.items()}
    bad = [name for name, norm in zip(self.names, norms, strict=True) if not math.isfinite(norm)]
    values = ', '.join(f'{name} {value:.4g}' for name, value in terms.items())
    gradients = ', '.join(bad[:5]) + (f' and {len(bad) - 5} more' if len(bad) > 5 else '')
    count = f' ({self.in_a_row} consecutive steps)' if self.in_a_row > 1 else ''
    details = {'step': step, 'first_step': first, 'terms': {n: repr(v) for n, v in terms.items()}}
    return Fault(
      f'loss or gradient not finite at step {step}{count}: {values}; '
      f'non-finite gradients: {gradients or "none"}',
      first,
      details | {'gradients': bad},
    )


def _mean(pair: Iterable[SupportsFloat]) -> float:
  total, weight = map(float, pair)
  return total / weight if weight else math.nan
