"""Summaries of the seeds of a variant, agreement of the seeds, Pareto fronts."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from t2x.statistics.distributions import t_ppf

Goal = Literal['min', 'max']

ALPHA = 0.05


@dataclasses.dataclass(frozen=True)
class Summary:
  """Mean of `n` seeds, standard deviation, and 95 % t interval of the mean.

  The mean is None without seeds; the standard deviation and the interval with fewer than two.
  """

  n: int
  mean: float | None = None
  std: float | None = None
  low: float | None = None
  high: float | None = None


@dataclasses.dataclass(frozen=True)
class Ranking:
  """Agreement of the seeds on the order of the variants.

  Attributes:
    taus: Kendall tau-b of each pair of seeds over the variants that finished with both; empty with fewer
      than two seeds or variants.
    ranks: ranks of each variant (1 is the best), one for each seed that it finished with.
  """

  taus: tuple[float, ...]
  ranks: Mapping[str, tuple[int, ...]]

  @property
  def tau(self) -> float | None:
    """Mean over the pairs of seeds; None without pairs."""
    return float(np.mean(self.taus)) if self.taus else None


def summarise(values: Sequence[float]) -> Summary:
  """Computes the mean, standard deviation and 95 % interval."""
  n = len(values)
  if n < 2:
    return Summary(n, float(values[0]) if n else None)
  mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
  if not std:
    return Summary(n, mean, 0.0, mean, mean)
  confidence = 1 - ALPHA
  ends = np.array([1 - confidence, 1 + confidence]) / 2
  low, high = mean + std / math.sqrt(n) * t_ppf(ends, n - 1)
  return Summary(n, mean, std, float(low), float(high))


def ranking(values: Mapping[str, Mapping[int, float]], goal: Goal) -> Ranking:
  """Measures the stability of the order of variants.

  Seeds with which at most half of the variants finished are left out, such as further seeds of the baseline.

  Args:
    values: variant -> seed -> metric.
    goal: whether a lower or a higher metric is better.
  """
  from scipy import stats

  sign = 1 if goal == 'min' else -1
  finished = collections.Counter(seed for of_seed in values.values() for seed in of_seed)
  variants = sum(map(bool, values.values()))
  seeds = sorted(seed for seed, count in finished.items() if 2 * count > variants)
  taus: list[float] = []
  ranks: dict[str, list[int]] = {}
  for first, second in itertools.combinations(seeds, 2):
    shared = [of_seed for of_seed in values.values() if first in of_seed and second in of_seed]
    if len(shared) > 1:
      sides = ([of_seed[seed] for of_seed in shared] for seed in (first, second))
      taus.append(float(stats.kendalltau(*sides).statistic))
  for seed in seeds:
    present = [variant for variant, of_seed in values.items() if seed in of_seed]
    if len(present) == 1 and len(values) > 1:
      continue  # A seed that only the baseline has.
    ranked = stats.rankdata([sign * values[variant][seed] for variant in present], 'min')
    for variant, rank in zip(present, ranked, strict=True):
      ranks.setdefault(variant, []).append(int(rank))
  return Ranking(
    tuple(tau for tau in taus if not math.isnan(tau)),
    {variant: tuple(ranks[variant]) for variant in values if variant in ranks},
  )


def pareto_front(costs: Sequence[float | int], values: Sequence[float], goal: Goal) -> list[bool]:
  """Returns for each point whether it is on the Pareto front.

  A point is on the front if no different point has at most its cost and an equal or better value.
  """
  sign = 1 if goal == 'min' else -1
  points = [(cost, sign * value) for cost, value in zip(costs, values, strict=True)]
  return [
    not any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)
    for point in points
  ]
