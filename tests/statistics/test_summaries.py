"""Summaries, agreement of the seeds and Pareto fronts, against scipy and by hand."""

import math

import numpy as np
from scipy import stats

from t2x.statistics.summaries import pareto_front, ranking, summarise


def test_a_summary_matches_scipy():
  values = [3.1, 3.0, 3.4, 2.9, 3.3]
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


def test_ranking():
  values = {
    'a': {0: 1.0, 1: 1.0, 2: 3.0},
    'b': {0: 2.0, 1: 3.0, 2: 2.0},
    'c': {0: 3.0, 1: 2.0, 2: 1.0},
  }
  found = ranking(values, 'min')
  # Pairs of seeds: (0, 1) one swap of three: 1/3; (0, 2) reversed: -1; (1, 2): -1/3.
  np.testing.assert_allclose(found.tau, -1 / 3, rtol=1e-12)
  np.testing.assert_allclose(found.taus, [1 / 3, -1, -1 / 3], rtol=1e-12)
  assert found.ranks == {'a': (1, 1, 3), 'b': (2, 3, 2), 'c': (3, 2, 1)}
  assert ranking(values, 'max').ranks['b'] == (2, 1, 2)
  assert ranking({'a': {0: 1.0}}, 'min').tau is None


def test_seeds_of_one_variant_have_no_rank():
  values = {'a': {0: 2.0, 1: 3.0, 2: 1.0, 3: 1.0}, 'b': {0: 1.0, 1: 2.0}}
  assert ranking(values, 'min').ranks == {'a': (2, 2), 'b': (1, 1)}


def test_seeds_of_few_variants_are_not_ranked():
  values = {
    'a': {0: 1.0, 1: 2.0, 2: 1.0},
    'b': {0: 2.0, 1: 1.0},
    'c': {0: 3.0, 1: 3.0},
    'd': {1: 4.0},
  }
  found = ranking(values, 'min')
  assert found.ranks == {'a': (1, 2), 'b': (2, 1), 'c': (3, 3), 'd': (4,)}
  assert len(found.taus) == 1


def test_pareto_front():
  costs, values = [1, 2, 3, 2, 1], [5.0, 4.0, 4.5, 4.0, 6.0]
  assert pareto_front(costs, values, 'min') == [True, True, False, True, False]
  assert pareto_front(costs, values, 'max') == [False, False, False, False, True]
