"""Tests of the mean differences between the variants of a sweep and their baselines.

The two-way model or paired t tests (see t2x.statistics.two_way). If all differences are equal, a t test is impossible:
a difference of zero has p = 1; any other constant is tested with the sign test, p = 2 ** (1 - pairs). Intervals and
p-values contain the noise of the evaluated examples if it is known (see t2x.statistics.example_noise).
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from t2x.statistics.example_noise import ExampleNoise
from t2x.statistics.two_way import FEWEST, Contrasts, contrasts


@dataclasses.dataclass(frozen=True)
class Sample:
  """Results of the seeds of a variant at a point of the grid.

  Attributes:
    values: metric of each seed that finished.
    diverged: number of seeds that diverged or did not learn.
    examples: values of each evaluated example by seed, [examples]; {} if they are not recorded.
    unit: what the values are of: a 'seed', a 'run' without seeds, an 'item' of a single run, or a 'block' of seeds that
      share a tuned value, whose means are the values.
  """

  values: Mapping[int, float]
  diverged: int = 0
  examples: Mapping[int, np.ndarray] = dataclasses.field(default_factory=dict, compare=False)
  unit: str = 'seed'


def block_means(
  blocks: Mapping[int, int],
  values: Mapping[int, float],
  diverged: Collection[int],
  examples: Mapping[int, np.ndarray],
) -> tuple[dict[int, float], set[int], dict[int, np.ndarray]]:
  """Averages seeds that share a random choice, such as a tuned value: the choices are independent, the seeds are not.

  A block with a diverged seed counts as diverged, because the mean of its remaining seeds would be a mean of survivors.

  Args:
    blocks: block of each seed.
    values: metric of the seeds that finished.
    diverged: seeds that diverged.
    examples: values of each evaluated example by seed [examples].

  Returns:
    The mean metric, the diverged blocks, and the mean of each example, by block.
  """
  members: dict[int, list[int]] = {}
  for seed in values:
    members.setdefault(blocks[seed], []).append(seed)
  lost = {blocks[seed] for seed in diverged}
  means = {
    block: float(np.mean([values[seed] for seed in seeds]))
    for block, seeds in members.items()
    if block not in lost
  }
  of_examples: dict[int, np.ndarray] = {}
  for block in means:
    arrays = [examples[seed] for seed in members[block] if seed in examples]
    if len(arrays) == len(members[block]) and len({array.shape for array in arrays}) == 1:
      of_examples[block] = np.stack(arrays).mean(axis=0, dtype=np.float64)
  return means, lost, of_examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class DifferenceTest:
  """Test of a mean difference.

  Attributes:
    error: standard error of the difference by the noise of the seeds; 0 if all differences are equal.
    shared: correlation with the noise of the baseline.
    examples: noise of the evaluated examples.
    deviation: standard deviation of a paired difference.
    p_other: p-value by the test that the plan did not choose; the plain paired t test contains no noise of examples.
    pooled: whether the plan chose the two-way model.
  """

  pairs: int
  difference: float | None = None
  error: float | None = None
  freedom: float = 0.0
  shared: float = 0.0
  deviation: float = 0.0
  p: float | None = None
  p_other: float | None = None
  shared_other: float = 0.0
  pooled: bool = False
  note: str = ''
  examples: ExampleNoise = ExampleNoise()

  def interval(self, level: float) -> tuple[float | None, float | None]:
    """Returns the interval of confidence 1 - level; (None, None) without a test."""
    if self.difference is None or self.error is None:
      return None, None
    half = self.examples.half_width(self.error, self.freedom, level)
    return self.difference - half, self.difference + half

  def is_same(self, level: float, margin: float) -> bool:
    """Returns whether both one-sided tests reject a difference of the margin or more."""
    low, high = self.interval(level)
    if low is None or high is None or (self.difference and not self.error):
      return False
    return -margin < low and high < margin

  @property
  def effect(self) -> float | None:
    """The difference in standard deviations of a paired difference, with Hedges' correction."""
    if self.difference is None or not self.error or self.pairs < 3:
      return None
    from scipy import special

    # Hedges' exact correction of a standardised difference (1981, eq. 6e).
    half = self.freedom / 2
    hedges = math.exp(special.gammaln(half) - special.gammaln(half - 0.5)) / math.sqrt(half)
    return hedges * self.difference / self.deviation


def mean_tests(
  planned: Sequence[tuple[Sample, Sample]], groups: np.ndarray
) -> list[DifferenceTest]:
  """Tests the mean differences, with one model for each baseline; the planned comparisons choose the test."""
  noise = [_example_noise(variant, baseline) for variant, baseline in planned]
  tests = [_simple_test(*sides, examples) for sides, examples in zip(planned, noise, strict=True)]
  for group in np.unique(groups):
    members = [i for i, test in enumerate(tests) if test is None and groups[i] == group]
    if not members:
      continue
    baseline = planned[members[0]][1]
    samples = [baseline, *(planned[i][0] for i in members)]
    seeds = sorted({seed for sample in samples for seed in sample.values})
    values = np.array([[s.values.get(seed, math.nan) for seed in seeds] for s in samples])
    count = int((groups == group).sum())
    chosen, other = contrasts(values, count)
    for number, index in enumerate(members):
      pairs = len(planned[index][0].values.keys() & baseline.values.keys())
      tests[index] = _model_test(chosen, other, number, pairs, noise[index], count >= FEWEST)
  return [test for test in tests if test is not None]


def _example_noise(variant: Sample, baseline: Sample) -> ExampleNoise:
  seeds = sorted(set(variant.values) & set(baseline.values))
  return ExampleNoise.of(variant.examples, baseline.examples, seeds)


def _model_test(
  chosen: Contrasts,
  other: Contrasts | None,
  number: int,
  pairs: int,
  noise: ExampleNoise,
  pooled: bool,
) -> DifferenceTest:
  difference, error, freedom = _numbers(chosen, number)
  p_other, shared_other = None, 0.0
  if other is not None:
    p_other, shared_other = _p_and_shared(other, number, ExampleNoise() if pooled else noise)
  p, shared = _p_and_shared(chosen, number, noise)
  return DifferenceTest(
    pairs=pairs,
    difference=difference,
    error=error,
    freedom=freedom,
    shared=shared,
    deviation=float(chosen.deviation[number]),
    p=p,
    p_other=p_other,
    shared_other=shared_other,
    pooled=pooled,
    examples=noise,
  )


def _numbers(test: Contrasts, number: int) -> tuple[float, float, float]:
  return float(test.difference[number]), float(test.error[number]), float(test.freedom[number])


def _p_and_shared(test: Contrasts, number: int, noise: ExampleNoise) -> tuple[float, float]:
  """Returns the p-value and the correlation with the noise of the baseline.

  The noise of the examples counts as independent of other comparisons, which is conservative.
  """
  difference, error, freedom = _numbers(test, number)
  total, _ = noise.total(error, freedom)
  p = noise.p(float(test.p[number]), difference, error, freedom)
  return p, float(test.shared[number]) * error / total


def _simple_test(variant: Sample, baseline: Sample, noise: ExampleNoise) -> DifferenceTest | None:
  """Tests a difference without an estimate of the noise; returns None if there is one."""
  seeds = sorted(set(variant.values) & set(baseline.values))
  if not seeds:
    return DifferenceTest(pairs=0, note='no seed finished in both')
  values, baseline_values = (
    np.array([side.values[seed] for seed in seeds]) for side in (variant, baseline)
  )
  differences = values - baseline_values
  n, mean = len(seeds), float(np.mean(differences))
  if n == 1:
    return DifferenceTest(
      pairs=1, difference=mean, note='a single seed gives no estimate of the noise'
    )
  # Differences that are equal up to float64 rounding have no variance to test with.
  rounding = 1e-12 * float(np.max(np.abs([values, baseline_values])))
  if float(np.std(differences, ddof=1)) > rounding:
    return None
  if abs(mean) <= rounding:
    note = 'no difference at any seed'
    return DifferenceTest(
      pairs=n, difference=0.0, error=0.0, p=1.0, p_other=1.0, note=note, examples=noise
    )
  p = noise.p(2.0 ** (1 - n), mean, 0.0, 0.0)
  note = 'the same difference at every seed: sign test'
  return DifferenceTest(
    pairs=n, difference=mean, error=0.0, p=p, p_other=p, note=note, examples=noise
  )
