"""Guards verdicts on means against runs that learn or do not, in sweeps with few seeds.

If each run learns with some probability, all seeds of a variant may learn while every seed of the baseline fails, by
chance. Their differences are then nearly equal, and any test of means finds them significant. `Sweep.failed_above` and
`failed_below` separate such runs by planned thresholds; this guard works without thresholds. The chance depends on the
number of variants that learn at the rate of the baseline: at a level of 5 % three seeds are enough for one variant,
four for seven, five for fifty. If only some seeds of a variant learn, its paired differences with the baseline have a
wide range. A mean difference gets a verdict only if it exceeds `SPREAD` times these ranges of the other comparisons.
The largest ranges are ignored while their number keeps the chance below the level.

With more seeds of the baseline another error remains: by chance, all of the few seeds of a variant fail. The variant
then seems to have no noise, and its difference to the accurate mean of the baseline is significant. A verdict that the
paired seeds do not support therefore also needs a permutation test of the variant's seeds against all seeds of the
baseline (Pitman 1937, https://doi.org/10.2307/2984124), which is valid for any distribution.

`experiments/statistics` measures error rates and power with and without the guard.
"""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

SPREAD = 1.25
_RATES = np.linspace(0, 1, 101)
# Random orders of a permutation test, besides the observed one.
_DRAWS = 9999


def chance(seeds: int, comparisons: Sequence[int]) -> float:
  """Returns the probability that all runs of a baseline learn and no run of one of its variants, or the reverse.

  The maximum over all probabilities of learning, which are equal for all runs.

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
  """Returns the smallest number of seeds that suffices for all comparisons."""
  numbers = itertools.count(1)
  return next(n for n in numbers if enough_for(n, comparisons, baselines, level) == comparisons)


def smallest_differences(differences: np.ndarray, baselines: int, level: float) -> np.ndarray:
  """Returns the mean difference that each comparison must exceed to have a verdict [..., comparisons].

  Args:
    differences: paired differences of all planned comparisons [..., comparisons, seeds]; NaN: no value.
    baselines: number of baselines (points of the grid).
    level: probability of any wrong verdict.
  """
  return deciding_ranges(differences, baselines, level)[0]


def deciding_ranges(
  differences: np.ndarray, baselines: int, level: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns `smallest_differences`, and the index of the comparison whose range decides each (-1: no range does)."""
  finished = np.isfinite(differences)
  comparisons, pairs = differences.shape[-2], finished.sum(-1)
  top = np.where(finished, differences, -np.inf).max(-1, initial=-np.inf)
  ranges = np.maximum(top - np.where(finished, differences, np.inf).min(-1, initial=np.inf), 0)
  # Row i sorts the ranges of all comparisons except i, the largest first.
  others = np.where(np.eye(comparisons, dtype=bool), 0, ranges[..., None, :])
  order = np.argsort(-others, axis=-1, kind='stable')
  others = np.take_along_axis(others, order, -1)
  smallest, deciding = np.full(pairs.shape, np.inf), np.full(pairs.shape, -1)
  for count in np.unique(pairs):
    if enough := enough_for(int(count), comparisons, baselines, level):
      smallest = np.where(pairs == count, SPREAD * others[..., enough - 1], smallest)
      is_other = (pairs == count) & (others[..., enough - 1] > 0)
      deciding = np.where(is_other, order[..., enough - 1], deciding)
  return smallest, deciding


@functools.cache
def _draws(count: int, of: int) -> np.ndarray:
  """Returns random subsets of `count` of `of` indices [draws, count]."""
  return np.argsort(np.random.default_rng(0).random((_DRAWS, of)), axis=-1)[:, :count].copy()


def exchange_p(own: np.ndarray, others: np.ndarray) -> float:
  """Returns the two-sided p-value of a permutation test of the difference between two means.

  Args:
    own: metric of the seeds of a variant [seeds].
    others: metric of all seeds of the baseline [seeds].
  """
  pool, count, rest = np.concatenate([own, others]), len(own), len(others)
  sums = pool[_draws(count, count + rest)].sum(-1)
  differences = np.abs(sums / count - (pool.sum() - sums) / rest)
  observed = abs(own.mean() - others.mean())
  # Rounding must not make the observed order smaller than equal orders.
  return float((1 + (differences >= observed * (1 - 1e-9)).sum()) / (1 + _DRAWS))
