"""The two-way model: its parts against scipy, and its error rates by simulation."""

import numpy as np
import pytest
from scipy import optimize, special, stats

from experiments.statistics import calibrate
from t2x.statistics import two_way as model


def test_paired_tests_match_scipy_with_missing_values():
  values = np.random.default_rng(0).normal(size=(4, 6))
  values[1, 0] = values[0, 3] = np.nan
  found = model.paired(values)
  for index in range(3):
    expected = stats.ttest_rel(values[index + 1], values[0], nan_policy='omit')
    np.testing.assert_allclose(found.p[index], expected.pvalue, rtol=1e-9)
    assert found.freedom[index] == expected.df


@pytest.mark.parametrize('missing', [False, True])
def test_noise_variances_are_unbiased(missing):
  """Over 1,500 sweeps of 12 variants; a standard error is about 2 %."""
  generator = np.random.default_rng(1)
  noise = np.tile([1.0, 4.0, 16.0], 4)
  values = generator.normal(size=(1500, 12, 6)) * np.sqrt(noise)[:, None]
  values += 10 * generator.normal(size=(1500, 1, 6))
  if missing:
    values[:, 2, 4:] = values[:, 5, :2] = np.nan
  found, freedom = model.noise_variances(values)
  np.testing.assert_allclose(found.mean(0), noise, rtol=0.15 if missing else 0.1)
  most = np.isfinite(values).sum(-1) - 1
  assert (freedom <= most).all() and freedom.mean() > 0.8 * most.mean()
  # Their variance is that of the degrees of freedom.
  np.testing.assert_allclose(found.var(0), (2 * noise**2 / freedom.mean(0)), rtol=0.35)


def test_the_effects_of_the_seeds_do_not_matter():
  generator = np.random.default_rng(2)
  values = generator.normal(size=(10, 5))
  shifted = values + 100 * generator.normal(size=(1, 5)) + 7 * np.arange(10)[:, None]
  for first, second in zip(
    model.noise_variances(values), model.noise_variances(shifted), strict=True
  ):
    np.testing.assert_allclose(first, second, rtol=1e-8)


def test_the_inverse_trigamma_solves_the_equation():
  for value in (1e-3, 0.1, 1.0, 30.0):
    root = optimize.brentq(lambda x, v=value: special.polygamma(1, x) - v, 1e-3, 1e5, xtol=1e-10)
    np.testing.assert_allclose(model._inverse_trigamma(np.array(value)), root, rtol=1e-6)


def test_moderation_shares_equal_variances_and_leaves_unequal_ones():
  generator = np.random.default_rng(3)
  freedom = np.full(40, 4.0)
  equal = stats.chi2.rvs(4, size=40, random_state=generator) / 4
  variance, more = model.moderated(equal, freedom)
  assert (variance >= equal).all() and variance.max() == equal.max()
  assert np.median(more) > 7 and more[0] <= 8
  small = equal < 0.5
  assert (variance[small] > 1.5 * equal[small]).all()
  unequal = equal * np.tile([1, 100], 20)
  variance, more = model.moderated(unequal, freedom)
  np.testing.assert_allclose(variance, unequal)
  np.testing.assert_allclose(more, freedom)
  # A single outlier keeps its variance and its degrees of freedom.
  one = equal.copy()
  one[7] = 15
  variance, more = model.moderated(one, freedom)
  assert variance[7] == 15 and more[7] - 4 < 0.2 * (np.median(more) - 4)


def test_the_error_of_a_family_is_a_multivariate_normal_probability():
  shared = np.array([0.3, 0.7, 0.5, 0.9])
  covariance = np.outer(shared, shared) + np.diag(1 - shared**2)
  limit = 2.1
  inside = stats.multivariate_normal(np.zeros(4), covariance).cdf(
    np.full(4, limit), lower_limit=np.full(4, -limit)
  )
  p = np.array(2 * stats.norm.sf(limit))
  one_group = model.family_error(p, shared, np.zeros(4, int))
  np.testing.assert_allclose(one_group, 1 - inside, atol=2e-4)
  separate = model.family_error(p, shared, np.arange(4))
  np.testing.assert_allclose(separate, 1 - (1 - p) ** 4, rtol=1e-6)
  level = model.single_level(shared, 0.05)
  error = model.family_error(level, shared, np.zeros(4, int))
  assert 0.0499 < error <= 0.05


def test_the_critical_value_matches_dunnett():
  """43 comparisons with a baseline of the same variance: 3.09 with infinite degrees of freedom."""
  shared = np.full(43, np.sqrt(0.5))
  limit = stats.norm.isf(model.single_level(shared, 0.05) / 2)
  generator = np.random.default_rng(0)
  draws = (generator.normal(size=(40_000, 43)) + generator.normal(size=(40_000, 1))) * np.sqrt(0.5)
  np.testing.assert_allclose((np.abs(draws) > limit).any(-1).mean(), 0.05, atol=0.004)


def test_stepping_down_leaves_out_rejected_comparisons():
  p, shared = np.array([0.5, 1e-4, 0.02]), np.array([0.2, 0.6, 0.8])
  groups = np.zeros(3, int)
  smallest = model.family_error(p[1], shared, groups)
  second = model.family_error(p[2], shared[[2, 0]], groups[:2])
  np.testing.assert_allclose(model.step_down(p, shared), [0.5, smallest, second], rtol=1e-9)
  again = model.step_down(np.array([0.03, 0.0300001]), np.array([0.5, 0.5]))
  assert again[1] == again[0], 'not smaller than that of a smaller p-value'


def check_errors(pattern, comparisons, seeds, sweeps, *unbalanced, bound=None):
  rates = calibrate.one_setting(pattern, comparisons, seeds, sweeps, *unbalanced)
  bound = bound or 0.05 + 2 * np.sqrt(0.05 * 0.95 / sweeps)
  assert rates['error new'] <= bound
  assert rates['same'] <= bound
  assert rates['coverage'] >= 1 - bound


@pytest.mark.parametrize('pattern', ['baseline 10', 'spread over 1 to 100, baseline 1'])
def test_errors_stay_below_five_percent_with_unequal_variances(pattern):
  """300 sweeps, at most 7.5 %: with pooled variances 15 to 40 % have errors, with limma's 10 to 30 %."""
  check_errors(pattern, 15, 5, 300)


@pytest.mark.nightly
@pytest.mark.parametrize('comparisons', [4, 15])
@pytest.mark.parametrize('seeds', [3, 10])
def test_errors_of_all_patterns_stay_near_five_percent(comparisons, seeds):
  """8,000 sweeps, whose standard error is 0.25 %. The largest rate is 6.0 %: a false `same`, if the noise of the
  baseline is a hundred times that of 15 variants."""
  for pattern in calibrate.PATTERNS:
    check_errors(pattern, comparisons, seeds, 8000, bound=0.0635)


def test_power_is_twice_that_of_paired_tests_with_equal_variances():
  rates = calibrate.one_setting('equal', 15, 5, 200)
  assert rates['power new'] > 0.8 and rates['power old'] < 0.45


def unbalanced(generator, effect, variants=10, seeds=5, more=15):
  values = generator.normal(size=(variants, seeds + more))
  values += effect * generator.normal(size=(1, seeds + more))
  values[1:, seeds:] = np.nan
  return values


def test_seeds_of_the_baseline_reduce_the_error_if_seeds_matter_little():
  generator = np.random.default_rng(4)
  for effect, fewest, most in ((0.0, 0.7, 0.9), (10.0, 0.95, 1.1)):
    ratios, weights = [], []
    for _ in range(50):
      values = unbalanced(generator, effect)
      more, few = model.two_way(values), model.two_way(values[:, :5])
      ratios.append(more.error / few.error)
      paired_baseline, others = values[0, :5].mean(), values[0, 5:].mean()
      weights.append((more.difference - few.difference) / (paired_baseline - others))
    assert fewest < np.median(ratios) < most
    # The best weight is 15 / 20 of the part of the noise, and at most a half.
    np.testing.assert_allclose(np.median(weights), 0.0 if effect else 0.5, atol=0.03)


def test_a_difference_is_unbiased_and_its_error_matches_repeated_sweeps():
  generator = np.random.default_rng(5)
  for effect in (0.0, 0.7):
    found = [model.two_way(unbalanced(generator, effect)) for _ in range(400)]
    differences = np.array([one.difference for one in found])
    variance = np.mean([one.error**2 for one in found])
    np.testing.assert_allclose(differences.mean(), 0, atol=0.06)
    # Moderation never reduces a variance, so that the estimate is too large on average.
    assert 0.9 < variance / differences.var() < 1.4


def test_without_further_seeds_of_the_baseline_nothing_changes():
  values = np.random.default_rng(6).normal(size=(10, 5))
  padded = np.concatenate([values, np.full((10, 3), np.nan)], axis=1)
  for first, second in zip(
    vars(model.two_way(values)).values(), vars(model.two_way(padded)).values(), strict=True
  ):
    np.testing.assert_allclose(first, second, rtol=1e-12)


@pytest.mark.parametrize('effect', [0.0, 2.0])
def test_errors_stay_below_five_percent_with_more_seeds_of_the_baseline(effect):
  check_errors('spread over 1 to 100, baseline 10', 15, 5, 300, 20, effect)
