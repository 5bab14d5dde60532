"""Compares the variants of a sweep with the baseline: differences, intervals and verdicts.

Mean differences of the metric are tested (see t2x.sweeps.differences), with a guard against runs that learn or do not
(t2x.sweeps.learn_or_not), equivalence by two one-sided tests (Schuirmann 1987, https://doi.org/10.1007/BF01068419),
and divergence rates by Barnard's exact test. All tests of a sweep are corrected together.

A comparison without a p-value counts as p = 1, so that a partial report is as strict as the final one.
Diverged seeds have no value: means and differences are over the seeds that finished. If the divergence rates
differ, they are compared as well. A variant with a significantly higher rate 'hurts', with a significantly lower
rate 'helps'. A significant mean difference in the other direction than that of the rates is 'inconclusive', as it
is a difference between the seeds that survived.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import stats

from t2x.sweeps.differences import DifferenceTest, Sample, mean_tests
from t2x.sweeps.learn_or_not import SPREAD, seeds_without_guard, smallest_differences
from t2x.sweeps.statistics import ALPHA, Goal
from t2x.sweeps.two_way import single_level, step_down

Verdict = Literal['helps', 'hurts', 'same', 'inconclusive', 'withheld']

POWER, MAX_SEEDS = 0.8, 1000
# Confidence of the bounds that the number of further seeds is computed from.
_BOUND = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
  """Comparison of a variant with the baseline.

  Attributes:
    pairs: number of seeds that finished in both.
    difference: mean of variant - baseline over the pairs, corrected by further seeds of the baseline (see
      t2x.sweeps.two_way); None without pairs.
    low: lower end of the interval of the difference, simultaneous for all planned comparisons.
    high: upper end of the interval.
    effect: the difference in standard deviations of a paired difference, with Hedges' correction. None
      with fewer than three pairs, or if all differences are equal.
    p: p-value of the test of the plan; None without a test. With different divergence rates, twice the smaller
      one of its p-value and that of Barnard's test.
    p_corrected: p-value corrected for all planned comparisons, which determines the verdict.
    p_other: corrected p-value of the mean difference by the test that the plan did not choose, for information:
      the paired t test or the two-way model.
    verdict: 'helps' or 'hurts' if p_corrected is at most the level, 'same' if the difference is smaller than the margin,
      'withheld' if a reason forbids a verdict, else 'inconclusive'.
    withheld: the reason: too few seeds, or a variant that is not tuned; '' for other verdicts.
    examples: number of evaluated examples whose noise the interval contains; None if it contains that of the seeds
      only.
    more_seeds: seeds to add for a power of 0.8, from bounds (see `_more_seeds`). 0 if there is a verdict,
      MAX_SEEDS + 1 for more than MAX_SEEDS, None if it cannot be computed.
    note: remarks, such as the number of diverged seeds; '' without any.
  """

  pairs: int
  difference: float | None = None
  low: float | None = None
  high: float | None = None
  effect: float | None = None
  p: float | None = None
  p_corrected: float | None = None
  p_other: float | None = None
  verdict: Verdict = 'inconclusive'
  withheld: str = ''
  examples: int | None = None
  more_seeds: int | None = None
  note: str = ''

  def without_verdict(self, reason: str, note: str = '') -> 'Comparison':
    """Returns the comparison with its verdict withheld for a reason, with a further remark."""
    notes = '; '.join(filter(None, [self.note, note]))
    return dataclasses.replace(self, verdict='withheld', withheld=reason, note=notes)


def compare(
  planned: Sequence[tuple[Sample, Sample]],
  goal: Goal,
  *,
  margin: float | None = None,
  level: float = ALPHA,
) -> list[Comparison]:
  """Compares all planned (variant, baseline) pairs of a sweep, with a joint correction.

  Args:
    planned: samples of the variant and the baseline; pairs with equal baselines share its noise.
    goal: whether a lower or a higher metric is better.
    margin: largest difference that counts as none; None: 'same' is not tested.
    level: probability of any wrong 'helps' or 'hurts' in the sweep.
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
  corrected = _corrected(both, shared, groups)
  other = _corrected(
    [test.p_other for test in tests], np.array([test.shared_other for test in tests]), groups
  )
  baselines = int(groups.max()) + 1
  smallest = smallest_differences(_differences(planned), baselines, level)
  needed = seeds_without_guard(len(planned), baselines, level)
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
    verdict = _verdict(comparison, planned[index], goal, rate, level, float(smallest[index]))
    if rate is None and margin is not None and test.is_same(narrow, margin):
      verdict = 'same'
    more = _more_seeds(test, wide, margin) if verdict == 'inconclusive' and rate is None else None
    comparison = dataclasses.replace(
      comparison, verdict=verdict, more_seeds=more if verdict == 'inconclusive' else 0
    )
    comparisons.append(_guarded(comparison, level, float(smallest[index]), needed))
  return comparisons


def _corrected(
  p: Sequence[float | None], shared: np.ndarray, groups: np.ndarray
) -> list[float | None]:
  """Corrects p-values for all comparisons; those that are missing count as 1."""
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
  smallest: float,
) -> Verdict:
  """Returns the verdict; a mean difference counts if it is larger than `smallest`."""
  if not _is_significant(comparison, level):
    return 'inconclusive'
  difference = comparison.difference
  by_mean: Verdict | None = None
  if difference is not None and _is_large(comparison, smallest):
    by_mean = 'helps' if (difference < 0) == (goal == 'min') else 'hurts'
  if rate is None:
    return by_mean or 'inconclusive'
  parts = [side.diverged / (side.diverged + len(side.values)) for side in sides]
  by_rate: Verdict = 'hurts' if parts[0] > parts[1] else 'helps'
  # The p-value is that of the rates, or twice it.
  if comparison.p in (rate, min(1.0, 2 * rate)) or by_mean == by_rate:
    return by_rate
  return 'inconclusive'


def _is_significant(comparison: Comparison, level: float) -> bool:
  return comparison.p_corrected is not None and comparison.p_corrected <= level


def _is_large(comparison: Comparison, smallest: float) -> bool:
  return comparison.difference is not None and abs(comparison.difference) > smallest


def _guarded(comparison: Comparison, level: float, smallest: float, needed: int) -> Comparison:
  """Withholds a verdict by the guard of few seeds (see t2x.sweeps.learn_or_not), which `needed` seeds have not."""
  if (
    comparison.verdict != 'inconclusive'
    or not _is_significant(comparison, level)
    or _is_large(comparison, smallest)
  ):
    return comparison
  pairs, note = comparison.pairs, f'{comparison.pairs} seeds are too few for a verdict'
  if math.isfinite(smallest):
    note = (
      f'with {pairs} seeds this difference must exceed {smallest:.3g}, {SPREAD} times the range over the seeds of '
      'others'
    )
  more = max(comparison.more_seeds or 0, needed - pairs)
  return dataclasses.replace(comparison, more_seeds=more).without_verdict('too few seeds', note)


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
    effect = abs(test.difference) - total * float(stats.t.ppf(_BOUND, of_total))
  else:
    effect = margin
    error *= math.sqrt(test.freedom / float(stats.chi2.ppf(1 - _BOUND, test.freedom)))
  if effect <= 0:
    return None

  def reached(pairs: int) -> bool:
    freedom = test.freedom * (pairs - 1) / (test.pairs - 1)
    # More seeds do not reduce the noise of the examples.
    shift = effect / math.sqrt(error**2 * test.pairs / pairs + test.examples.variance)
    limit = float(stats.t.isf(level / 2, freedom))
    # The noncentral t distribution, approximated by a normal one (Johnson and Welch 1940).
    normal = (limit * (1 - 1 / (4 * freedom)) - shift) / math.sqrt(1 + limit**2 / (2 * freedom))
    return float(stats.norm.sf(normal)) >= POWER

  low, high = test.pairs, test.pairs + MAX_SEEDS
  if not reached(high):
    return MAX_SEEDS + 1
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if reached(middle) else (middle, high)
  return high - test.pairs
