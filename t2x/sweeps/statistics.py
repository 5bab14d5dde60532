"""Statistical comparison of variants with the baseline. Requires the extra `report`.

Computed by scipy and statsmodels: t intervals and paired t tests by seed, Barnard's test of divergence
rates, Holm's correction (https://www.jstor.org/stable/4615733), and power.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from t2x.errors import UserError

try:
  from scipy import special, stats
  from statsmodels.stats.multitest import multipletests
  from statsmodels.stats.power import TTestPower
except ImportError as error:
  raise UserError(
    "the report of a sweep requires scipy and statsmodels: pip install 't2x[report]'"
  ) from error

Goal = Literal['min', 'max']
Verdict = Literal['helps', 'hurts', 'inconclusive']

ALPHA, POWER, MAX_SEEDS = 0.05, 0.8, 1000


@dataclasses.dataclass(frozen=True)
class Sample:
  """Results of the seeds of a variant at a point of the grid.

  Attributes:
    values: metric of each seed that finished.
    diverged: number of seeds that diverged.
  """

  values: Mapping[int, float]
  diverged: int = 0


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
  """Comparison of a variant with the baseline, paired by seed.

  Attributes:
    pairs: number of seeds that finished in both.
    difference: mean of variant - baseline over the pairs; None without pairs.
    low: lower end of the 95 % interval of the difference, not corrected for multiple comparisons.
    high: upper end of the interval.
    effect: Cohen's d_z with Hedges' correction: the difference in units of the standard deviation of
      the differences. None with fewer than three pairs, or if all differences are equal.
    p: p-value of the test; None without a test.
    p_holm: p-value corrected for all planned comparisons, which determines the verdict.
    verdict: 'helps' or 'hurts' if p_holm <= 0.05, else 'inconclusive'.
    more_seeds: seeds to add for a power of 0.8 if the true effect equals the measured one. 0 if there
      is a verdict, MAX_SEEDS + 1 for more than MAX_SEEDS, None if it cannot be computed.
    note: remarks, such as the number of diverged seeds; '' without any.
  """

  pairs: int
  difference: float | None = None
  low: float | None = None
  high: float | None = None
  effect: float | None = None
  p: float | None = None
  p_holm: float | None = None
  verdict: Verdict = 'inconclusive'
  more_seeds: int | None = None
  note: str = ''


@dataclasses.dataclass(frozen=True)
class Ranking:
  """Agreement of the seeds on the order of the variants.

  Attributes:
    tau: mean Kendall tau-b over all pairs of seeds, each over the variants that finished with both;
      None with fewer than two seeds or variants.
    ranks: best and worst rank of each variant over the seeds (1 is the best).
  """

  tau: float | None
  ranks: Mapping[str, tuple[int, int]]


def summarise(values: Sequence[float]) -> Summary:
  """Computes the mean, standard deviation and 95 % interval."""
  n = len(values)
  if n < 2:
    return Summary(n, float(values[0]) if n else None)
  mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
  if not std:
    return Summary(n, mean, 0.0, mean, mean)
  low, high = stats.t.interval(1 - ALPHA, n - 1, mean, std / math.sqrt(n))
  return Summary(n, mean, std, float(low), float(high))


def compare(planned: Sequence[tuple[Sample, Sample]], goal: Goal) -> list[Comparison]:
  """Compares all planned (variant, baseline) pairs of a sweep, with a joint correction.

  A comparison without a p-value counts as p = 1 in Holm's correction, so that a partial report is as
  strict as the final one.

  Diverged seeds have no value: means and differences are over the seeds that finished. A variant with
  diverged seeds never 'helps'. If a larger fraction of its seeds diverged than of the baseline's,
  Barnard's one-sided test is applied as well. p is then that test's with fewer than two pairs, and
  otherwise twice the smaller of the two. If the divergence is significant, the variant 'hurts'.

  If all differences are equal, a t test is impossible. A difference of zero is 'inconclusive' with
  p = 1; any other constant is tested with the sign test, p = 2 ** (1 - pairs).
  """
  if not planned:
    return []
  comparisons = [_compare_pairs(variant, baseline) for variant, baseline in planned]
  rates = [_divergence(variant, baseline) for variant, baseline in planned]
  both = [_combine(item.p, rate) for item, rate in zip(comparisons, rates, strict=True)]
  p_values = np.array([1.0 if p is None else p for p in both])
  holm = multipletests(p_values, ALPHA, 'holm')[1]
  # The significance level of each p-value in Holm's procedure, by rank.
  levels = ALPHA / (len(p_values) - stats.rankdata(p_values, 'ordinal') + 1)
  return [
    _decide(
      dataclasses.replace(item, p=p, p_holm=None if p is None else float(corrected)),
      variant,
      goal,
      rate,
      float(level),
    )
    for item, (variant, _), rate, p, corrected, level in zip(
      comparisons, planned, rates, both, holm, levels, strict=True
    )
  ]


def _compare_pairs(variant: Sample, baseline: Sample) -> Comparison:
  seeds = sorted(set(variant.values) & set(baseline.values))
  if not seeds:
    return Comparison(pairs=0, note='no seed finished in both')
  values, baseline_values = (
    np.array([side.values[seed] for seed in seeds]) for side in (variant, baseline)
  )
  differences = values - baseline_values
  n, mean = len(seeds), float(np.mean(differences))
  if n == 1:
    return Comparison(pairs=1, difference=mean, note='a single seed gives no estimate of the noise')
  std = float(np.std(differences, ddof=1))
  # Differences that are equal up to float64 rounding have no variance to test with.
  rounding = 1e-12 * float(np.max(np.abs([values, baseline_values])))
  if std <= rounding:
    if abs(mean) <= rounding:
      note = 'no difference at any seed'
      return Comparison(pairs=n, difference=0.0, low=0.0, high=0.0, p=1.0, note=note)
    p = float(stats.binomtest(n, n).pvalue)
    note = 'the same difference at every seed: sign test'
    return Comparison(pairs=n, difference=mean, low=mean, high=mean, p=p, note=note)
  test = stats.ttest_rel(values, baseline_values)
  low, high = test.confidence_interval(1 - ALPHA)
  return Comparison(
    pairs=n,
    difference=mean,
    low=float(low),
    high=float(high),
    effect=_hedges(n - 1) * mean / std if n > 2 else None,
    p=float(test.pvalue),
  )


def _hedges(freedom: int) -> float:
  """Returns Hedges' exact correction of a standardised difference (1981, eq. 6e)."""
  half = freedom / 2
  return math.exp(special.gammaln(half) - special.gammaln(half - 0.5)) / math.sqrt(half)


def _divergence(variant: Sample, baseline: Sample) -> float | None:
  """Returns the one-sided p-value of a higher divergence rate; None if the rate is not higher."""
  ended = [len(side.values) + side.diverged for side in (variant, baseline)]
  if not all(ended) or variant.diverged / ended[0] <= baseline.diverged / ended[1]:
    return None
  table = [[variant.diverged, baseline.diverged], [len(variant.values), len(baseline.values)]]
  return float(stats.barnard_exact(table, 'greater').pvalue)


def _combine(p: float | None, rate: float | None) -> float | None:
  if p is None or rate is None:
    return rate if p is None else p
  return min(1.0, 2 * min(p, rate))


def _decide(
  comparison: Comparison, variant: Sample, goal: Goal, rate: float | None, level: float
) -> Comparison:
  diverged = variant.diverged
  notes = [f'{diverged} of {diverged + len(variant.values)} seeds diverged'] if diverged else []
  notes += [comparison.note] if comparison.note else []
  verdict: Verdict = 'inconclusive'
  if comparison.p_holm is not None and comparison.p_holm <= ALPHA:
    by_rate = rate is not None and (comparison.p == rate or comparison.p == min(1.0, 2 * rate))
    better = comparison.difference is not None and (comparison.difference < 0) == (goal == 'min')
    if by_rate or not better:
      verdict = 'hurts'
    elif not diverged:
      verdict = 'helps'
  more: int | None = 0
  if verdict == 'inconclusive':
    more = _more_seeds(comparison, level) if rate is None else None
  return dataclasses.replace(comparison, verdict=verdict, more_seeds=more, note='; '.join(notes))


def _more_seeds(comparison: Comparison, level: float) -> int | None:
  """Returns the number of pairs to add for a paired t test of this effect to reach the power."""
  if (
    comparison.pairs < 2
    or not comparison.difference
    or comparison.low is None
    or comparison.high is None
  ):
    return None
  if comparison.low == comparison.high:  # The sign test's p is 2 ** (1 - pairs).
    return max(1, math.ceil(1 - math.log2(level)) - comparison.pairs)
  half = stats.t.ppf(1 - ALPHA / 2, comparison.pairs - 1)
  effect = (
    abs(comparison.difference)
    * half
    / ((comparison.high - comparison.low) / 2 * math.sqrt(comparison.pairs))
  )
  power = TTestPower().power
  low, high = comparison.pairs, 2 * comparison.pairs
  # Doubled from a small number, as the noncentral t distribution is NaN for large ones.
  while power(effect, high, level) < POWER:
    low, high = high, 2 * high
    if low > comparison.pairs + MAX_SEEDS:
      return MAX_SEEDS + 1
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if power(effect, middle, level) >= POWER else (middle, high)
  return min(high - comparison.pairs, MAX_SEEDS + 1)


def ranking(values: Mapping[str, Mapping[int, float]], goal: Goal) -> Ranking:
  """Measures the stability of the order of variants. `values`: variant -> seed -> metric."""
  sign = 1 if goal == 'min' else -1
  seeds = sorted({seed for of_seed in values.values() for seed in of_seed})
  taus: list[float] = []
  ranks: dict[str, list[int]] = {}
  for first, second in itertools.combinations(seeds, 2):
    shared = [of_seed for of_seed in values.values() if first in of_seed and second in of_seed]
    if len(shared) > 1:
      sides = ([of_seed[seed] for of_seed in shared] for seed in (first, second))
      taus.append(float(stats.kendalltau(*sides).statistic))
  for seed in seeds:
    present = [variant for variant, of_seed in values.items() if seed in of_seed]
    ranked = stats.rankdata([sign * values[variant][seed] for variant in present], 'min')
    for variant, rank in zip(present, ranked, strict=True):
      ranks.setdefault(variant, []).append(int(rank))
  taus = [tau for tau in taus if not math.isnan(tau)]
  span = {
    variant: (min(ranks[variant]), max(ranks[variant])) for variant in values if variant in ranks
  }
  return Ranking(float(np.mean(taus)) if taus else None, span)


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
