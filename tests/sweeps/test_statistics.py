"""Statistics of sweeps, against scipy and statsmodels called directly, and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from t2x.errors import UserError
from t2x.sweeps.statistics import (
  MAX_SEEDS,
  Sample,
  compare,
  pareto_front,
  ranking,
  summarise,
)

SEEDS = range(5)


def sample(values, diverged=0):
  return Sample({seed: float(value) for seed, value in enumerate(values)}, diverged)


BASELINE = sample([3.0, 3.2, 3.1, 2.9, 3.3])
# Differences -0.5, -0.4, -0.6, -0.5, -0.5: mean -0.5, sd sqrt(0.005).
BETTER = sample([2.5, 2.8, 2.5, 2.4, 2.8])
# Differences 0.1, -0.2, 0.3, 0, 0: mean 0.04.
ALIKE = sample([3.1, 3.0, 3.4, 2.9, 3.3])


def test_a_summary_is_that_of_scipy():
  values = list(ALIKE.values.values())
  found = summarise(values)
  low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
  assert found.n == 5
  np.testing.assert_allclose(found.mean, 3.14, rtol=1e-12)
  np.testing.assert_allclose(found.std, math.sqrt(0.172 / 4), rtol=1e-9)
  np.testing.assert_allclose([found.low, found.high], [low, high], rtol=1e-12)


def test_a_summary_of_few():
  assert summarise([]).mean is None
  one = summarise([2.0])
  assert (one.n, one.mean, one.std, one.low) == (1, 2.0, None, None)
  same = summarise([2.0, 2.0])
  assert (same.std, same.low, same.high) == (0.0, 2.0, 2.0)


def test_comparisons_by_hand_and_by_scipy():
  better, alike = compare([(BETTER, BASELINE), (ALIKE, BASELINE)], 'min')
  np.testing.assert_allclose(better.difference, -0.5, rtol=1e-12)
  half = 2.7764451051977987 * math.sqrt(0.005 / 5)
  np.testing.assert_allclose([better.low, better.high], [-0.5 - half, -0.5 + half], rtol=1e-9)
  # d_z = -0.5 / sqrt(0.005); Hedges: gamma(2) / (sqrt(2) gamma(1.5)) = 2 / sqrt(2 pi).
  np.testing.assert_allclose(
    better.effect, -0.5 / math.sqrt(0.005) * 2 / math.sqrt(2 * math.pi), rtol=1e-9
  )
  p = [
    stats.ttest_rel([*side.values.values()], [*BASELINE.values.values()]).pvalue
    for side in (BETTER, ALIKE)
  ]
  np.testing.assert_allclose([better.p, alike.p], p, rtol=1e-12)
  # Holm: the smaller one twice, the larger once.
  np.testing.assert_allclose([better.p_holm, alike.p_holm], [2 * p[0], p[1]], rtol=1e-12)
  assert (better.verdict, alike.verdict) == ('helps', 'inconclusive')
  assert better.more_seeds == 0
  assert compare([(BETTER, BASELINE)], 'max')[0].verdict == 'hurts'


def test_what_is_still_missing_counts_in_the_correction():
  one = compare([(BETTER, BASELINE)] + [(Sample({}), BASELINE)] * 9, 'min')
  np.testing.assert_allclose(one[0].p_holm, 10 * one[0].p, rtol=1e-12)
  assert one[1].p_holm is None
  assert one[1].verdict == 'inconclusive'


def test_seeds_needed_are_those_of_statsmodels():
  one, _ = compare([(ALIKE, BASELINE), (BETTER, BASELINE)], 'min')
  differences = np.array([0.1, -0.2, 0.3, 0.0, 0.0])
  effect = differences.mean() / differences.std(ddof=1)
  # The larger of two p-values is held against 0.05.
  needed = TTestPower().solve_power(effect, alpha=0.05, power=0.8)
  assert one.more_seeds == math.ceil(needed) - 5


def test_a_tiny_effect_needs_more_seeds_than_anyone_has():
  tiny = sample([3.1, 3.1, 3.2, 2.8, 3.3001])
  (one,) = compare([(tiny, BASELINE)], 'min')
  assert one.more_seeds == MAX_SEEDS + 1


def test_a_large_effect_of_two_seeds_needs_few():
  (one,) = compare([(sample([1.0, 1.3]), sample([3.0, 3.2]))], 'min')
  # Differences of 2.0 and 1.9: t is 39 with one degree of freedom.
  assert one.p == pytest.approx(1 - 2 * np.arctan(39.0) / np.pi)
  assert (one.effect, one.verdict, one.more_seeds) == (None, 'helps', 0)
  (one,) = compare([(sample([1.0, 2.3]), sample([3.0, 3.2]))], 'min')
  effect = 1.45 / np.std([2.0, 0.9], ddof=1)
  few, enough = (TTestPower().power(effect, pairs, 0.05) for pairs in (4, 5))
  assert few < 0.8 <= enough
  assert (one.verdict, one.more_seeds) == ('inconclusive', 3)


def test_equal_runs_are_no_difference():
  (one,) = compare([(BASELINE, BASELINE)], 'min')
  assert (one.difference, one.p, one.verdict, one.more_seeds) == (0.0, 1.0, 'inconclusive', None)


def test_a_constant_difference_is_judged_by_the_sign_test():
  shifted = sample([value + 0.1 for value in BASELINE.values.values()])
  (one,) = compare([(shifted, BASELINE)], 'min')
  assert one.p == 2**-4
  assert one.verdict == 'inconclusive'
  assert one.more_seeds == 1
  assert one.effect is None
  many = [sample(np.arange(8) / 8 + shift) for shift in (0.25, 0)]
  assert compare([tuple(many)], 'min')[0].verdict == 'hurts'


def test_one_pair_cannot_tell():
  (one,) = compare([(sample([1.0]), BASELINE)], 'min')
  assert (one.pairs, one.difference, one.p, one.more_seeds) == (1, -2.0, None, None)
  assert one.verdict == 'inconclusive'


def test_only_seeds_that_both_have_are_compared():
  shifted = Sample({seed + 2: value for seed, value in BETTER.values.items()})
  (one,) = compare([(shifted, BASELINE)], 'min')
  assert one.pairs == 3
  # Seeds 2, 3, 4: 2.5 - 3.1, 2.8 - 2.9, 2.5 - 3.3.
  np.testing.assert_allclose(one.difference, -0.5, rtol=1e-12)


def test_who_diverged_does_not_help():
  some = Sample({seed: BETTER.values[seed] for seed in range(4)}, diverged=1)
  (one,) = compare([(some, BASELINE)], 'min')
  assert one.p <= 0.05
  assert one.verdict == 'inconclusive'
  assert one.note == '1 of 5 seeds diverged'
  p = stats.ttest_rel([2.5, 2.8, 2.5, 2.4], [3.0, 3.2, 3.1, 2.9]).pvalue
  np.testing.assert_allclose(one.p, 2 * p, rtol=1e-12)


def test_who_always_diverged_hurts_even_among_many():
  always = Sample({}, diverged=5)
  found = compare([(always, BASELINE)] + [(ALIKE, BASELINE)] * 40, 'max')
  # Of 10 fair coins, 5 given ones heads and 5 tails: the supremum that Barnard's test takes.
  np.testing.assert_allclose(found[0].p, 2.0**-10, rtol=1e-6)
  assert found[0].verdict == 'hurts'
  assert '5 of 5 seeds diverged' in found[0].note


def test_the_baseline_diverging_too_is_no_evidence():
  always = Sample({}, diverged=5)
  (one,) = compare([(always, always)], 'min')
  assert (one.p, one.verdict) == (None, 'inconclusive')


def test_ranking():
  values = {
    'a': {0: 1.0, 1: 1.0, 2: 3.0},
    'b': {0: 2.0, 1: 3.0, 2: 2.0},
    'c': {0: 3.0, 1: 2.0, 2: 1.0},
  }
  found = ranking(values, 'min')
  # Pairs of seeds: (0, 1) one swap of three: 1/3; (0, 2) reversed: -1; (1, 2): -1/3.
  np.testing.assert_allclose(found.tau, -1 / 3, rtol=1e-12)
  assert found.ranks == {'a': (1, 3), 'b': (2, 3), 'c': (1, 3)}
  assert ranking(values, 'max').ranks['b'] == (1, 2)
  assert ranking({'a': {0: 1.0}}, 'min').tau is None


def test_pareto_front():
  costs, values = [1, 2, 3, 2, 1], [5.0, 4.0, 4.5, 4.0, 6.0]
  assert pareto_front(costs, values, 'min') == [True, True, False, True, False]
  assert pareto_front(costs, values, 'max') == [False, False, False, False, True]


def simulated(generator, effects):
  """Variants and baseline with a shared effect of each seed and noise of one sd each."""
  shared = generator.normal(0, 3, len(SEEDS))
  baseline = sample(shared + generator.normal(size=len(SEEDS)))
  return [
    (sample(shared + effect + generator.normal(size=len(SEEDS))), baseline) for effect in effects
  ]


@pytest.fixture
def quick(monkeypatch):
  """statsmodels collects garbage at each correction, which takes nearly all of the time here."""
  monkeypatch.setattr('gc.collect', lambda: 0)


def test_the_null_study_calls_almost_nothing_different(tell, quick):
  """200 sweeps of 4 variants that are all the baseline: 800 comparisons, of which at most 5 % may
  be called different. Holm bounds the sweeps in which any is by 5 %, here to two standard errors."""
  generator = np.random.default_rng(0)
  called = [
    [one.verdict != 'inconclusive' for one in compare(simulated(generator, [0] * 4), 'min')]
    for _ in range(200)
  ]
  comparisons, sweeps = np.mean(called), np.mean(np.any(called, 1))
  told = {'comparisons called': f'{np.sum(called)} of 800', 'sweeps': f'{sweeps:.1%}'}
  tell('simulated sweeps', '4 null variants', told)
  assert comparisons <= 0.05
  assert np.sum(called[:50]) <= 10  # 200 comparisons
  assert sweeps <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize('goal, verdict', [('min', 'helps'), ('max', 'hurts')])
def test_a_planted_difference_is_found(goal, verdict, tell, quick):
  """One of two variants is lower by 3 standard deviations of the paired difference, in 5 seeds."""
  generator = np.random.default_rng(1)
  found = [
    compare(simulated(generator, [0, -3 * math.sqrt(2)]), goal)[1].verdict == verdict
    for _ in range(200)
  ]
  tell('simulated sweeps', '1 null, 1 planted', {f'planted {verdict}': f'{np.mean(found):.1%}'})
  assert np.mean(found) > 0.95


def test_without_statsmodels_one_line_tells_what_to_install(monkeypatch):
  import importlib
  import sys

  monkeypatch.setitem(sys.modules, 'statsmodels.stats.multitest', None)
  monkeypatch.delitem(sys.modules, 't2x.sweeps.statistics')
  with pytest.raises(UserError, match=r"pip install 't2x\[report\]'"):
    importlib.import_module('t2x.sweeps.statistics')
