"""Simulated error rates of verdicts on tuned variants and of reports before the end of a sweep."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

STATISTICS = Path(__file__).parents[2] / 'experiments' / 'statistics'
SCRIPTS = ('tuned', 'partial_looks', 'noise', 'second_look')


@pytest.fixture
def script(monkeypatch):
  """`script(name)`: a module of experiments/statistics."""
  monkeypatch.syspath_prepend(str(STATISTICS))
  yield lambda name: __import__(name)
  for name in SCRIPTS:
    sys.modules.pop(name, None)


def most(sweeps, errors=2.0, level=0.05):
  """The level and so many standard errors of the rate in `sweeps` sweeps."""
  return level + errors * np.sqrt(level * (1 - level) / sweeps)


def test_matched_tuning_keeps_the_level_where_the_best_mean_of_two_seeds_does_not(script):
  """250 sweeps: with ten seeds and one value for all 20 to 40 % are wrong."""
  error = script('tuned').error
  for tuned_baseline in (True, False):
    assert error('matched', 8, 10, 1.0, 250, tuned_baseline=tuned_baseline) <= most(250)
  assert error('blocks 5', 8, 10, 1.0, 250) <= most(250)
  assert error('best mean 2', 8, 10, 1.0, 250) > 0.15


def test_matched_tuning_has_the_power_of_the_best_mean(script):
  """120 sweeps at ten seeds: at least 0.9 of the power with the best mean of two seeds."""
  power = script('tuned').power
  for curvature, size in itertools.product((0.25, 1.0), (2.0, 4.0)):
    before = power('best mean 2', 8, 10, curvature, size, 120)
    assert power('matched', 8, 10, curvature, size, 120) >= 0.9 * before > 0.6


# Paired t tests, with fewer than seven comparisons, have a rate of 5 %. With 1,000 sweeps two of 72 settings had 7.1
# and 6.4 % by chance.
SWEEPS = {1: 20_000, 4: 20_000, 8: 4_000, 15: 4_000}


@pytest.mark.nightly
@pytest.mark.parametrize('comparisons', SWEEPS)
@pytest.mark.parametrize('seeds', [5, 10, 20])
def test_matched_tuning_keeps_the_level(script, comparisons, seeds):
  """All six settings together are within two standard errors, each within the error of the largest of 72."""
  error, sweeps = script('tuned').error, SWEEPS[comparisons]
  found = {
    (curvature, tuned_baseline): error(
      'matched', comparisons, seeds, curvature, sweeps, tuned_baseline=tuned_baseline
    )
    for curvature in (0.25, 1.0, 4.0)
    for tuned_baseline in (True, False)
  }
  assert np.mean([*found.values()]) <= most(6 * sweeps), found
  largest = stats.norm.isf(0.05 / 72)
  assert max(found.values()) <= most(sweeps, errors=largest), found


def test_reports_before_the_end_are_looks(script):
  """300 sweeps of four equal variants with eight seeds, reported with each seed."""
  rates = script('partial_looks').wrong(4, 8, 300)
  assert rates['every report'] > 0.09
  assert max(rates['last report'], rates['max_seeds']) <= most(300)
