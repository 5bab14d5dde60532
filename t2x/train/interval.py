"""Means over the steps since the last log line, fetched from the device an interval late."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t2x.tasks.losses import Sums

__all__ = ['Interval']


class Interval:
  """Sums of the steps of one log interval, still on the device until `totals` is asked.

  `saved` is what a checkpoint in the middle of the interval had summed so far.
  """

  def __init__(self, saved: Mapping[str, Any] | None = None):
    self.saved = dict(saved or {})
    self.steps: list[Sums] = []

  def add(self, sums: Sums) -> None:
    """Takes one step's sums without waiting for them."""
    self.steps.append(sums)

  def totals(self) -> dict[str, tuple[float, float]]:
    """(sum, weight) by name over the whole interval, summed in float64 in the order of the steps,
    so that an interrupted interval gives the very same numbers."""
    totals = {name: np.array(pair, np.float64) for name, pair in self.saved.items()}
    for sums in jax.device_get(self.steps):
      for name, pair in sums.items():
        totals[name] = totals.get(name, np.zeros(2)) + np.array(pair, np.float64)
    return {name: (float(pair[0]), float(pair[1])) for name, pair in totals.items()}
