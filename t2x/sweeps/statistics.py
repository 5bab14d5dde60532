"""Whether a variant differs from the baseline, and how surely. Needs the extra `report`.

Every number is that of scipy or statsmodels: t intervals and paired t tests by seed, Barnard's test
of divergence rates, Holm's correction (https://www.jstor.org/stable/4615733), power.
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
    "the report of a sweep needs scipy and statsmodels: pip install 't2x[report]'"
  ) from error

Goal = Literal['min', 'max']
Verdict = Literal['helps', 'hurts', 'cannot tell']

ALPHA, POWER, MOST_SEEDS = 0.05, 0.8, 1000


@dataclasses.dataclass(frozen=True)
class Sample:
  """What the seeds of one variant gave, at one point of the grid.

  Attributes:
    values: the metric of each seed that finished.
    diverged: number of seeds whose training was ended by a loss that was not finite.
  """

  values: Mapping[int, float]
  diverged: int = 0


@dataclasses.dataclass(frozen=True)
class Summary:
  """Mean of `n` seeds, their standard deviation, and the 95 % t interval of the mean.

  What needs more seeds than there are is None: the mean one, the others two.
  """

  n: int
  mean: float | None = None
  std: float | None = None
  low: float | None = None
  high: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
  """A variant against the baseline, paired by seed.

  Attributes:
    pairs: seeds that both finished.
    difference: mean of variant - baseline over the pairs, None without any.
    low: lower end of its 95 % interval (not corrected for the number of comparisons).
    high: its upper end.
    effect: Cohen's d_z with Hedges' correction: the difference in standard deviations of the
      differences. None with fewer than three pairs, or where all differences are equal.
    p: of the test, None where there is none.
    p_holm: corrected for all planned comparisons; this one decides.
    verdict: 'helps' or 'hurts' where p_holm <= 0.05.
    more_seeds: seeds to add for a power of 0.8, if the effect is what it seems: 0 where the verdict
      stands, MOST_SEEDS + 1 for more than MOST_SEEDS, None where it cannot be said.
    note: what else is to be known, '' if nothing.
  """

  pairs: int
  difference: float | None = None
  low: float | None = None
  high: float | None = None
  effect: float | None = None
  p: float | None = None
  p_holm: float | None = None
  verdict: Verdict = 'cannot tell'
  more_seeds: int | None = None
  note: str = ''


@dataclasses.dataclass(frozen=True)
class Ranking:
  """How far the seeds agree on the order of the variants.

  Attributes:
    tau: mean Kendall tau-b over all pairs of seeds, each over the variants that finished at both;
      None with fewer than two seeds or variants.
    ranks: best and worst rank of each variant (1: the best), among those that finished at a seed.
  """

  tau: float | None
  ranks: Mapping[str, tuple[int, int]]


def summarise(values: Sequence[float]) -> Summary:
  """Mean, standard deviation and 95 % interval."""
  n = len(values)
  if n < 2:
    return Summary(n, float(values[0]) if n else None)
  mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
  if not std:
    return Summary(n, mean, 0.0, mean, mean)
  low, high = stats.t.interval(1 - ALPHA, n - 1, mean, std / math.sqrt(n))
  return Summary(n, mean, std, float(low), float(high))


def compare(planned: Sequence[tuple[Sample, Sample]], goal: Goal) -> list[Comparison]:
  """Compares (variant, baseline) pairs: all those that a sweep plans, in one correction.

  A comparison that has no p-value yet counts in Holm's correction as one with p = 1, so that a
  partial report is as strict as the last one.

  A diverged seed has no value: means and differences are over the seeds that finished. A variant
  with diverged seeds never 'helps'. Where more of its seeds diverged than of the baseline's,
  Barnard's one-sided test of that is made too: alone where fewer than two pairs are left, else
  p is twice the smaller of the two. If it is the divergence that is significant, the variant 'hurts'.

  Where all differences are equal there is no noise for a t test: zero is 'cannot tell' with p = 1,
  any other constant is judged by the sign test, p = 2 ** (1 - pairs).
  """
  if not planned:
    return []
  found = [_paired(variant, baseline) for variant, baseline in planned]
  rates = [_divergence(variant, baseline) for variant, baseline in planned]
  both = [_combined(one.p, rate) for one, rate in zip(found, rates, strict=True)]
  known = np.array([1.0 if p is None else p for p in both])
  holm = multipletests(known, ALPHA, 'holm')[1]
  # The level that Holm's procedure holds each p-value against, by its rank.
  levels = ALPHA / (len(known) - stats.rankdata(known, 'ordinal') + 1)
  return [
    _judged(
      dataclasses.replace(one, p=p, p_holm=None if p is None else float(corrected)),
      variant,
      goal,
      rate,
      float(level),
    )
    for one, (variant, _), rate, p, corrected, level in zip(
      found, planned, rates, both, holm, levels, strict=True
    )
  ]


def _paired(variant: Sample, baseline: Sample) -> Comparison:
  seeds = sorted(set(variant.values) & set(baseline.values))
  if not seeds:
    return Comparison(pairs=0, note='no seed finished in both')
  left, right = (np.array([side.values[seed] for seed in seeds]) for side in (variant, baseline))
  differences = left - right
  n, mean = len(seeds), float(np.mean(differences))
  if n == 1:
    return Comparison(pairs=1, difference=mean, note='one seed tells nothing about noise')
  std = float(np.std(differences, ddof=1))
  # Beyond float64's rounding of the values, there is no noise in equal differences.
  rounding = 1e-12 * float(np.max(np.abs([left, right])))
  if std <= rounding:
    if abs(mean) <= rounding:
      note = 'no difference at any seed'
      return Comparison(pairs=n, difference=0.0, low=0.0, high=0.0, p=1.0, note=note)
    p = float(stats.binomtest(n, n).pvalue)
    note = 'the same difference at every seed: sign test'
    return Comparison(pairs=n, difference=mean, low=mean, high=mean, p=p, note=note)
  test = stats.ttest_rel(left, right)
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
  """Hedges' exact correction of a standardised difference (1981, eq. 6e)."""
  half = freedom / 2
  return math.exp(special.gammaln(half) - special.gammaln(half - 0.5)) / math.sqrt(half)


def _divergence(variant: Sample, baseline: Sample) -> float | None:
  """One-sided p-value of a higher divergence rate; None where the rate is not higher."""
  ended = [len(side.values) + side.diverged for side in (variant, baseline)]
  if not all(ended) or variant.diverged / ended[0] <= baseline.diverged / ended[1]:
    return None
  table = [[variant.diverged, baseline.diverged], [len(variant.values), len(baseline.values)]]
  return float(stats.barnard_exact(table, 'greater').pvalue)


def _combined(p: float | None, rate: float | None) -> float | None:
  if p is None or rate is None:
    return rate if p is None else p
  return min(1.0, 2 * min(p, rate))


def _judged(
  one: Comparison, variant: Sample, goal: Goal, rate: float | None, level: float
) -> Comparison:
  diverged = variant.diverged
  notes = [f'{diverged} of {diverged + len(variant.values)} seeds diverged'] if diverged else []
  notes += [one.note] if one.note else []
  verdict: Verdict = 'cannot tell'
  if one.p_holm is not None and one.p_holm <= ALPHA:
    by_rate = rate is not None and (one.p == rate or one.p == min(1.0, 2 * rate))
    better = one.difference is not None and (one.difference < 0) == (goal == 'min')
    if by_rate or not better:
      verdict = 'hurts'
    elif not diverged:
      verdict = 'helps'
  more: int | None = 0
  if verdict == 'cannot tell':
    more = _more_seeds(one, level) if rate is None else None
  return dataclasses.replace(one, verdict=verdict, more_seeds=more, note='; '.join(notes))


def _more_seeds(one: Comparison, level: float) -> int | None:
  """Pairs to add until a paired t test of this effect has the power."""
  if one.pairs < 2 or not one.difference or one.low is None or one.high is None:
    return None
  if one.low == one.high:  # The sign test's p is 2 ** (1 - pairs).
    return max(1, math.ceil(1 - math.log2(level)) - one.pairs)
  half = stats.t.ppf(1 - ALPHA / 2, one.pairs - 1)
  effect = abs(one.difference) * half / ((one.high - one.low) / 2 * math.sqrt(one.pairs))
  power = TTestPower().power
  low, high = one.pairs, 2 * one.pairs
  # Upwards from few: the noncentral t distribution is not a number far out.
  while power(effect, high, level) < POWER:
    low, high = high, 2 * high
    if low > one.pairs + MOST_SEEDS:
      return MOST_SEEDS + 1
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if power(effect, middle, level) >= POWER else (middle, high)
  return min(high - one.pairs, MOST_SEEDS + 1)


def ranking(values: Mapping[str, Mapping[int, float]], goal: Goal) -> Ranking:
  """How stable the order of variants is. `values`: variant -> seed -> metric."""
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
  """Which points no other one beats: one that costs no more, is no worse, and is not equal."""
  sign = 1 if goal == 'min' else -1
  points = [(cost, sign * value) for cost, value in zip(costs, values, strict=True)]
  return [
    not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points)
    for one in points
  ]
