"""Guards verdicts on means against runs that learn or do not, in sweeps with few seeds.

If each run learns with some probability, all seeds of a variant may learn and none of the baseline, by chance. Their
differences are then nearly equal, and any test of means finds them significant. `Sweep.failed_above` and
`failed_below` separate such runs by the plan; this guard holds without them. The chance depends on the number
of variants that learn at the rate of the baseline: at a level of 5 % three seeds are enough for one variant, four for
seven, five for fifty. Variants that learn with some of their seeds show it by the range of their paired differences
with the baseline. A mean difference has a verdict only if it is larger, by a factor `SPREAD`, than these ranges of the
other comparisons, except so many that their chance is below the level.

`experiments/statistics` measures error rates and power with and without the guard.
"""

import itertools
from collections.abc import Sequence

import numpy as np

SPREAD = 1.25
_RATES = np.linspace(0, 1, 101)


def chance(seeds: int, comparisons: Sequence[int]) -> float:
  """Returns the probability that all runs of a baseline learn and no run of one of its variants, or the reverse.

  It is the largest one over all probabilities of learning, which are equal for all runs.

  Args:
    seeds: number of seeds of each variant.
    comparisons: number of variants of each baseline of the sweep.
  """
  learns, fails = _RATES**seeds, (1 - _RATES) ** seeds
  none = np.ones_like(_RATES)
  for count in comparisons:
    none = none * (1 - fails * (1 - (1 - learns) ** count) - learns * (1 - (1 - fails) ** count))
  return float(1 - none.min())


def enough_for(seeds: int, comparisons: int, baselines: int, level: float) -> int:
  """Returns the largest number of variants, up to `comparisons`, whose chance is at most the level."""
  for count in range(comparisons, 0, -1):
    if chance(seeds, np.bincount(np.arange(count) % baselines).tolist()) <= level:
      return count
  return 0


def seeds_without_guard(comparisons: int, baselines: int, level: float) -> int:
  """Returns the smallest number of seeds that are enough for all comparisons."""
  numbers = itertools.count(1)
  return next(n for n in numbers if enough_for(n, comparisons, baselines, level) == comparisons)


def smallest_differences(differences: np.ndarray, baselines: int, level: float) -> np.ndarray:
  """Returns the mean difference that each comparison must exceed to have a verdict [..., comparisons].

  Args:
    differences: paired differences of all planned comparisons of the sweep [..., comparisons, seeds]; NaN: no value.
    baselines: number of baselines (points of the grid).
    level: probability of any wrong verdict.
  """
  seen = np.isfinite(differences)
  comparisons, pairs = differences.shape[-2], seen.sum(-1)
  top = np.where(seen, differences, -np.inf).max(-1, initial=-np.inf)
  ranges = np.maximum(top - np.where(seen, differences, np.inf).min(-1, initial=np.inf), 0)
  # Row i has the ranges of the other comparisons, the largest first.
  others = np.where(np.eye(comparisons, dtype=bool), 0, ranges[..., None, :])
  others = -np.sort(-others, axis=-1)
  result = np.full(pairs.shape, np.inf)
  for count in np.unique(pairs):
    if enough := enough_for(int(count), comparisons, baselines, level):
      result = np.where(pairs == count, SPREAD * others[..., enough - 1], result)
  return result
