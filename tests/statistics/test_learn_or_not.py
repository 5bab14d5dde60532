"""The guard against runs that learn or do not: its probability by enumeration, its error rates by simulation."""

import itertools

import numpy as np
import pytest
from scipy import stats

from experiments.statistics import noise
from t2x.statistics.comparisons import Sample, compare
from t2x.statistics.learn_or_not import (
  SPREAD,
  chance,
  enough_for,
  exchange_p,
  seeds_without_guard,
  smallest_differences,
)


def enumerated(seeds, comparisons, rate):
  """Sums the probabilities of all outcomes in which all of one side and none of another learn."""
  total = 0.0
  for runs in itertools.product([0, 1], repeat=seeds * (comparisons + 1)):
    rows = np.reshape(runs, (comparisons + 1, seeds)).sum(-1)
    if rows[0] in (0, seeds) and (rows[1:] == seeds - rows[0]).any():
      total += rate ** sum(runs) * (1 - rate) ** (len(runs) - sum(runs))
  return total


@pytest.mark.parametrize(('seeds', 'comparisons'), [(1, 1), (2, 3), (3, 1), (3, 3)])
def test_the_chance_matches_an_enumeration_of_outcomes(seeds, comparisons):
  expected = max(enumerated(seeds, comparisons, rate) for rate in (0.2, 0.4, 0.45, 0.5))
  np.testing.assert_allclose(chance(seeds, [comparisons]), expected, rtol=0.01)


def test_the_chance_of_several_baselines_matches_independent_sweeps():
  # At 0.5 for all, where a single comparison has its largest chance.
  np.testing.assert_allclose(chance(3, [1, 1]), 1 - (1 - 2 * 0.5**6) ** 2, rtol=1e-12)


def test_seeds_are_enough_for_so_many_variants():
  assert [enough_for(seeds, 60, 1, 0.05) for seeds in (2, 3, 4, 5, 6)] == [0, 1, 7, 50, 60]
  # With a baseline for each variant, chances add up.
  assert [enough_for(seeds, 60, 60, 0.05) for seeds in (3, 4)] == [1, 6]
  assert seeds_without_guard(1, 1, 0.05) == 3 and seeds_without_guard(16, 1, 0.05) == 5


def test_missing_pairs_count_for_neither_difference_nor_range():
  nan = np.nan
  differences = np.array(
    [[1.0, 1.01, nan], [0.1, 0.2, 0.0], [0.25, 0.26, 0.27], [0.24, 0.25, 0.23], [nan, nan, nan]]
  )
  # Two pairs are too few. Three must exceed 1.25 times the largest range of the others, 0.2 or 0.02.
  found = smallest_differences(differences, 1, 0.05)
  np.testing.assert_allclose(found, [np.inf, 0.025, 0.25, 0.25, np.inf], rtol=1e-9)


def test_four_seeds_may_have_six_variants_with_larger_ranges():
  """Ranges of 1 to 9: the seventh largest of the others counts."""
  differences = np.arange(1.0, 10.0)[:, None] * [0.0, 0.5, 1.0, 0.2]
  expected = SPREAD * np.array([3, 3, 2, 2, 2, 2, 2, 2, 2])
  np.testing.assert_allclose(smallest_differences(differences, 1, 0.05), expected)


def test_simulated_verdicts_match_reports():
  generator = np.random.default_rng(11)
  differ = 0
  for values in noise.learns(0.5)(generator, (40, 5, 3)):
    samples = [Sample(dict(enumerate(row))) for row in values.tolist()]
    found = compare([(sample, samples[0]) for sample in samples[1:]], 'max')
    decided = noise.verdicts(values[None])
    assert [item.verdict in ('helps', 'hurts') for item in found] == [*decided['guard'][0]]
    differ += (decided['guard'] != decided['tests']).any()
  assert differ > 1, 'the guard withholds some'


def test_the_permutation_test_is_that_of_scipy():
  generator = np.random.default_rng(2)
  for count, rest, shift in ((3, 5, 0.0), (4, 6, 1.5), (5, 20, 1.0), (5, 20, 3.0)):
    own, others = generator.normal(size=count) + shift, generator.normal(size=rest)
    expected = stats.permutation_test(
      (own, others),
      lambda a, b, axis: np.abs(a.mean(axis) - b.mean(axis)),
      vectorized=True,
      n_resamples=100_000,
      alternative='greater',
    ).pvalue
    found = exchange_p(own, others)
    assert abs(found - expected) < 4 * np.sqrt(expected / 9999) + 1e-4
  # Equal results: every order is as extreme.
  assert exchange_p(np.ones(5), np.ones(20)) == 1.0


def test_simulated_verdicts_with_more_seeds_of_the_baseline_match_reports():
  generator = np.random.default_rng(12)
  differ = 0
  values = noise.learns(0.4)(generator, (60, 9, 20))
  values[:, 1:, 5:] = np.nan
  for sweep in values:
    samples = [
      Sample({seed: value for seed, value in enumerate(row) if np.isfinite(value)})
      for row in sweep.tolist()
    ]
    found = compare([(sample, samples[0]) for sample in samples[1:]], 'max')
    decided = noise.verdicts(sweep[None])
    assert [item.verdict in ('helps', 'hurts') for item in found] == [*decided['guard'][0]]
    differ += (decided['guard'] != decided['tests']).any()
  assert differ > 1, 'neither pairs nor the permutation test confirm some'


def test_more_seeds_of_the_baseline_have_few_wrong_verdicts_if_runs_learn_or_do_not():
  """300 sweeps, at most 7.5 %: the tests alone are wrong in about 13 %."""
  found = noise.rates(noise.learns(0.5), 8, 5, 300, baseline_seeds=20)
  check(found['error guard'], 300)
  assert found['error tests'] > 0.08
  # Normal noise loses nothing.
  normal = noise.rates(noise.NOISE['normal'], 8, 5, 100, baseline_seeds=20)
  assert normal['power guard'] > 0.95 * normal['power tests'] > 0.5


def check(rate, sweeps, level=0.05):
  assert rate <= level + 2 * np.sqrt(level * (1 - level) / sweeps), rate


@pytest.mark.parametrize('comparisons', [4, 6, 16])
def test_three_seeds_that_learn_or_do_not_have_few_wrong_verdicts(comparisons):
  """500 sweeps, at most 7 %: the tests alone are wrong in 7 to 15 %."""
  found = noise.rates(noise.learns(0.5), comparisons, 3, 500)
  assert found['error guard'] < 0.02 < 0.05 < found['error tests']


def test_three_seeds_find_large_differences():
  found = noise.rates(noise.NOISE['normal'], 4, 3, 500)
  assert 0.15 < found['power guard'] <= found['power tests']


@pytest.mark.nightly
@pytest.mark.parametrize(
  'size', [(1, 3), (4, 3), (16, 3), (4, 4), (43, 4), (4, 5), (43, 5), (16, 10)]
)
def test_errors_stay_below_five_percent_with_noise_that_was_not_used_to_find_the_rule(size):
  for stream, families in ((3, noise.NOISE), (4, noise.HELD_OUT)):
    for family in families.values():
      check(noise.rates(family, *size, 1000, stream=stream)['error guard'], 1000)
  for always in {size[0] // 2, size[0] - 1} - {0}:
    # The pages name this exception: with ten seeds the two-way model underestimates the noise of runs at 0.5.
    level = 0.09 if size == (16, 10) else 0.05
    check(noise.some_always_learn(size[0], always, size[1], 1000, stream=5)['guard'], 1000, level)


@pytest.mark.nightly
@pytest.mark.parametrize('rate', [0.5, 0.8])
def test_errors_stay_below_five_percent_with_a_bound_of_failures(rate):
  for comparisons, seeds in ((4, 3), (6, 5), (16, 3)):
    check(noise.with_bound(rate, comparisons, seeds, 500), 500)
