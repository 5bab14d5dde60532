"""Compares the variants of a sweep with the baseline: differences, intervals and verdicts.

t2x.statistics.differences tests mean differences of the metric, and t2x.statistics.learn_or_not guards them against
runs that learn or do not. Equivalence follows from two one-sided tests (Schuirmann 1987,
https://doi.org/10.1007/BF01068419), a difference in divergence rates from Barnard's exact test. All tests of a sweep
are corrected together.

A comparison without a p-value counts as p = 1. With a margin, a significant difference must reach it to help or hurt.
Diverged seeds have no value: means and differences use the seeds that finished. If the divergence rates differ, they
are compared as well: a variant with a significantly higher rate 'hurts', with a significantly lower rate 'helps'. If
the mean difference is significant in the opposite direction, the verdict is 'inconclusive', because the means compare
only the surviving seeds.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from t2x.statistics.differences import DifferenceTest, Sample, mean_tests
from t2x.statistics.distributions import chi2_ppf, t_ppf
from t2x.statistics.learn_or_not import SPREAD, deciding_ranges, exchange_p, seeds_without_guard
from t2x.statistics.power import t_power
from t2x.statistics.summaries import ALPHA, Goal
from t2x.statistics.two_way import holm, informational, single_level, step_down

Verdict = Literal['helps', 'hurts', 'same', 'inconclusive', 'withheld']

POWER, MAX_SEEDS = 0.8, 1000
# Confidence of the bounds behind the number of further seeds.
_BOUND = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
  """Comparison of a variant with the baseline.

  Attributes:
    pairs: number of seeds that finished in both variants.
    difference: mean of variant - baseline over the pairs, corrected by further seeds of the baseline (see
      t2x.statistics.two_way); None without pairs.
    low: lower end of the single-step interval of the difference, simultaneous for all planned comparisons.
    high: upper end of the interval.
    by_rates: whether 'helps' or 'hurts' follows from the divergence rates, and not from the mean difference.
    effect: the difference in standard deviations of a paired difference, with Hedges' correction. None
      with fewer than three pairs, or if all differences are equal.
    p: p-value of the planned test; None without a test. With different divergence rates, twice the minimum of this
      p-value and the p-value of Barnard's test.
    p_corrected: p-value corrected for all planned comparisons, which determines the verdict.
    p_other: corrected p-value of the mean difference by the alternative test, for information: the plain paired t test
      with Holm's correction if the plan chose the two-way model, else the two-way model.
    verdict: 'helps' or 'hurts' if p_corrected is at most the level and the difference at least the margin, 'same' if
      the difference is smaller than the margin, 'withheld' if a reason forbids a verdict, else 'inconclusive'.
    withheld: the reason: too few seeds, or a variant that is not tuned; '' for other verdicts.
    examples: number of evaluated examples whose noise the interval contains; None if it contains only the noise of the
      seeds.
    more_seeds: seeds to add for a power of 0.8, from bounds (see `_more_seeds`). 0 with a verdict,
      MAX_SEEDS + 1 for more than MAX_SEEDS, None if it cannot be computed.
    note: remarks, such as the number of diverged seeds; '' without remarks.
  """

  pairs: int
  difference: float | None = None
  low: float | None = None
  high: float | None = None
  by_rates: bool = False
  effect: float | None = None
  p: float | None = None
  p_corrected: float | None = None
  p_other: float | None = None
  verdict: Verdict = 'inconclusive'
  withheld: str = ''
  examples: int | None = None
  more_seeds: int | None = None
  note: str = ''

  @property
  def interval(self) -> tuple[float | None, float | None]:
    """The interval beside the verdict; a bound is 0 where 'helps' or 'hurts' meets a single-step
    interval that includes 0.

    The step-down test shows only the sign of the difference, so that 0 is the bound of the compatible interval
    (Strassburger and Bretz 2008, https://doi.org/10.1002/sim.3338).
    """
    low, high = self.low, self.high
    if self.verdict not in ('helps', 'hurts') or self.by_rates or low is None or high is None:
      return low, high
    return (max(low, 0.0), high) if (self.difference or 0) > 0 else (low, min(high, 0.0))

  def interval_text(self, form: str) -> str:
    """Formats the interval: '+0.1 to +0.3', or '> 0 to +0.3' with a bound of 0; '' without one."""
    low, high = self.interval
    if low is None or high is None:
      return ''
    ends = format(low, form), format(high, form)
    if (low, high) != (self.low, self.high):
      ends = ('> 0', ends[1]) if low == 0 else (ends[0], '< 0')
    return ' to '.join(ends)

  def without_verdict(self, reason: str, note: str = '') -> 'Comparison':
    """Returns the comparison with a withheld verdict, its reason and an additional remark."""
    notes = '; '.join(filter(None, [self.note, note]))
    return dataclasses.replace(self, verdict='withheld', withheld=reason, note=notes)


def compare(
  planned: Sequence[tuple[Sample, Sample]],
  goal: Goal,
  *,
  margin: float | None = None,
  level: float = ALPHA,
  names: Sequence[str] = (),
) -> list[Comparison]:
  """Compares all planned (variant, baseline) pairs of a sweep, with a joint correction.

  Args:
    planned: samples of the variant and the baseline; pairs with equal baselines share its noise.
    goal: whether a lower or a higher metric is better.
    margin: largest negligible difference; None: 'same' is not tested.
    level: probability of any wrong 'helps' or 'hurts' in the sweep.
    names: names of the comparisons, for remarks.
  """
  if not planned:
    return []
  groups = _groups(planned)
  tests = mean_tests(planned, groups)
  rates = [_divergence(variant, baseline) for variant, baseline in planned]
  both = [_combine(test.p, rate) for test, rate in zip(tests, rates, strict=True)]
  shared = np.array(
    [0.0 if rate is not None else test.shared for test, rate in zip(tests, rates, strict=True)]
  )
  corrected, other = _corrected(both, shared, groups), _other(tests, groups)
  guard = _Guard.of(planned, tests, groups, level, names)
  wide = float(single_level(shared, level, groups))
  narrow = float(single_level(shared, min(2 * level, 0.5), groups))
  comparisons = []
  for index, (test, rate) in enumerate(zip(tests, rates, strict=True)):
    low, high = test.interval(wide)
    comparison = Comparison(
      pairs=test.pairs,
      difference=test.difference,
      low=low,
      high=high,
      effect=test.effect,
      p=both[index],
      p_corrected=corrected[index],
      p_other=other[index],
      examples=test.examples.count,
      note=_note(planned[index][0], test),
    )
    large = abs(test.difference or 0) > guard.smallest[index]
    counts = large and abs(test.difference or 0) >= (margin or 0)
    verdict = _verdict(comparison, planned[index], goal, rate, level, counts)
    if rate is None and margin is not None and test.is_same(narrow, margin):
      verdict = 'same'
    more = None
    if verdict == 'inconclusive' and rate is None:
      more = informational('the number of further seeds', _more_seeds, test, wide, margin)
    by_rates = rate is not None and verdict != 'inconclusive'
    comparison = dataclasses.replace(
      comparison,
      verdict=verdict,
      by_rates=by_rates,
      more_seeds=more if verdict == 'inconclusive' else 0,
    )
    if verdict == 'inconclusive' and _is_significant(comparison, level):
      comparison = _explained(comparison, guard, index, margin if rate is None else None)
    comparisons.append(comparison)
  return comparisons


def _other(tests: Sequence[DifferenceTest], groups: np.ndarray) -> list[float | None]:
  """Returns corrected p-values of the alternative tests; Holm's correction for the plain paired t tests."""
  plain = [test.p if test.p_other is None or not test.pooled else test.p_other for test in tests]
  by_holm = holm(np.array([1.0 if p is None else p for p in plain]))
  by_model = _corrected(
    [test.p_other for test in tests], np.array([test.shared_other for test in tests]), groups
  )
  return [
    (None if test.p_other is None else float(p)) if test.pooled else model
    for test, p, model in zip(tests, by_holm, by_model, strict=True)
  ]


def _corrected(
  p: Sequence[float | None], shared: np.ndarray, groups: np.ndarray
) -> list[float | None]:
  """Corrects p-values for all comparisons; missing p-values count as 1."""
  corrected = step_down(np.array([1.0 if x is None else x for x in p]), shared, groups)
  return [None if x is None else float(c) for x, c in zip(p, corrected, strict=True)]


def _differences(planned: Sequence[tuple[Sample, Sample]]) -> np.ndarray:
  """Returns the paired differences [comparisons, seeds]; NaN: no pair."""
  seeds = sorted({seed for _, baseline in planned for seed in baseline.values})
  return np.array(
    [
      [variant.values.get(seed, math.nan) - baseline.values.get(seed, math.nan) for seed in seeds]
      for variant, baseline in planned
    ]
  ).reshape(len(planned), -1)


def _groups(planned: Sequence[tuple[Sample, Sample]]) -> np.ndarray:
  """Numbers the baselines of the comparisons."""
  baselines: list[Sample] = []
  for _, baseline in planned:
    if baseline not in baselines:
      baselines.append(baseline)
  return np.array([baselines.index(baseline) for _, baseline in planned])


def _divergence(variant: Sample, baseline: Sample) -> float | None:
  """Returns the two-sided p-value of a difference in divergence rates; None if they are equal."""
  ended = [len(side.values) + side.diverged for side in (variant, baseline)]
  if not all(ended) or variant.diverged * ended[1] == baseline.diverged * ended[0]:
    return None
  from scipy import stats

  table = [[variant.diverged, baseline.diverged], [len(variant.values), len(baseline.values)]]
  return float(stats.barnard_exact(table).pvalue)


def _combine(p: float | None, rate: float | None) -> float | None:
  if p is None or rate is None:
    return rate if p is None else p
  return min(1.0, 2 * min(p, rate))


def _note(variant: Sample, test: DifferenceTest) -> str:
  ended = variant.diverged + len(variant.values)
  diverged = f'{variant.diverged} of {ended} {variant.unit}s diverged' if variant.diverged else ''
  return '; '.join(text for text in (diverged, test.note) if text)


def _verdict(
  comparison: Comparison,
  sides: tuple[Sample, Sample],
  goal: Goal,
  rate: float | None,
  level: float,
  counts: bool,
) -> Verdict:
  """Returns the verdict; `counts`: whether the mean difference is large enough."""
  if not _is_significant(comparison, level):
    return 'inconclusive'
  difference = comparison.difference
  by_mean: Verdict | None = None
  if difference is not None and counts:
    by_mean = 'helps' if (difference < 0) == (goal == 'min') else 'hurts'
  if rate is None:
    return by_mean or 'inconclusive'
  parts = [side.diverged / (side.diverged + len(side.values)) for side in sides]
  by_rate: Verdict = 'hurts' if parts[0] > parts[1] else 'helps'
  # The p-value comes from the rates, once or doubled.
  if comparison.p in (rate, min(1.0, 2 * rate)) or by_mean == by_rate:
    return by_rate
  return 'inconclusive'


def _is_significant(comparison: Comparison, level: float) -> bool:
  return comparison.p_corrected is not None and comparison.p_corrected <= level


@dataclasses.dataclass(frozen=True)
class _Guard:
  """Limits of verdicts from few seeds (see t2x.statistics.learn_or_not).

  Attributes:
    smallest: mean difference that each comparison must exceed [comparisons]; infinite if its seeds support no verdict.
    reasons: explanation for a difference at or below `smallest`, for each comparison.
    needed: number of seeds without such limits.
  """

  smallest: np.ndarray
  reasons: Sequence[str]
  needed: int

  @classmethod
  def of(
    cls,
    planned: Sequence[tuple[Sample, Sample]],
    tests: Sequence[DifferenceTest],
    groups: np.ndarray,
    level: float,
    names: Sequence[str],
  ) -> '_Guard':
    baselines = int(groups.max()) + 1
    smallest, deciding = deciding_ranges(_differences(planned), baselines, level)
    reasons = []
    for test, size, other in zip(tests, smallest, deciding, strict=True):
      whose = names[other] if names and other >= 0 else 'others'
      reasons.append(
        f'with {test.pairs} seeds this difference must exceed {size:.3g}, {SPREAD} times the range over the seeds of '
        f'{whose}'
        if math.isfinite(size)
        else f'{test.pairs} seeds are too few for a verdict'
      )
    for index, supported in enumerate(_supported(planned, groups, level)):
      if not supported:
        smallest[index] = math.inf
        reasons[index] = (
          f'neither the {tests[index].pairs} paired seeds alone nor a permutation test of the seeds confirms it'
        )
    return cls(smallest, reasons, seeds_without_guard(len(planned), baselines, level))


def _supported(
  planned: Sequence[tuple[Sample, Sample]], groups: np.ndarray, level: float
) -> np.ndarray:
  """Returns which comparisons are significant on the paired seeds, or by permutation of all seeds."""
  seeds = {seed for variant, _ in planned for seed in variant.values}
  if all(baseline.values.keys() <= seeds for _, baseline in planned):
    return np.ones(len(planned), bool)
  paired = [
    (variant, dataclasses.replace(baseline, values=_only(baseline.values, seeds)))
    for variant, baseline in planned
  ]
  tests = mean_tests(paired, groups)
  paired_p = _corrected([t.p for t in tests], np.array([test.shared for test in tests]), groups)
  exchanged = holm(np.array([_exchange_p(*sides) for sides in planned]))
  return np.array([p is not None and p <= level for p in paired_p]) | (exchanged <= level)


def _only(values: Mapping[int, float], seeds: Collection[int]) -> dict[int, float]:
  return {seed: value for seed, value in values.items() if seed in seeds}


def _exchange_p(variant: Sample, baseline: Sample) -> float:
  sides = [np.array([*side.values.values()]) for side in (variant, baseline)]
  return exchange_p(*sides) if all(map(len, sides)) else 1.0


def _explained(
  comparison: Comparison, guard: _Guard, index: int, margin: float | None
) -> Comparison:
  """Explains why a significant comparison is inconclusive: it is below the margin, or its seeds are too few."""
  size = abs(comparison.difference or 0)
  if comparison.difference is not None and margin is not None and size < margin:
    notes = '; '.join(filter(None, [comparison.note, 'below the margin']))
    return dataclasses.replace(comparison, note=notes)
  if size > guard.smallest[index]:
    return comparison
  more = max(comparison.more_seeds or 1, guard.needed - comparison.pairs)
  return dataclasses.replace(comparison, more_seeds=more).without_verdict(
    'too few seeds', guard.reasons[index]
  )


def _more_seeds(test: DifferenceTest, level: float, margin: float | None) -> int | None:
  """Returns the number of seeds to add for a verdict with a power of `POWER`.

  The power is not that of the measured difference, which would be optimistic for differences that were
  selected because they are large. With a margin, it is the power to detect a difference of the margin, with
  an upper bound of the variance. Otherwise it is that of a lower bound of the difference, and None if
  the bound is zero.
  """
  if test.difference is None or test.error is None or test.pairs < 2:
    return None
  if not test.error:
    if not test.difference:
      return None
    # The sign test's p is 2 ** (1 - pairs).
    return max(1, math.ceil(1 - math.log2(level)) - test.pairs)
  error = test.error
  if margin is None:
    total, of_total = test.examples.total(error, test.freedom)
    effect = abs(test.difference) - total * float(t_ppf(_BOUND, of_total))
  else:
    effect = margin
    error *= math.sqrt(test.freedom / float(chi2_ppf(1 - _BOUND, test.freedom)))
  if effect <= 0:
    return None

  def reached(pairs: int) -> bool:
    freedom = test.freedom * (pairs - 1) / (test.pairs - 1)
    # More seeds do not reduce the noise of the examples.
    shift = effect / math.sqrt(error**2 * test.pairs / pairs + test.examples.variance)
    return t_power(shift, freedom, level) >= POWER

  low, high = test.pairs, test.pairs + MAX_SEEDS
  if not reached(high):
    return MAX_SEEDS + 1
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if reached(middle) else (middle, high)
  return high - test.pairs
