"""Agreement with published results, against scipy."""

import numpy as np
import pytest
from scipy import stats

from t2x.sweeps.published import Published
from t2x.sweeps.report import read_results, report_data, write_report
from t2x.sweeps.report.agreement import agreements

EFFECTS = {'vanilla': 0.0} | {f'v{number}': 0.02 * (number - 6) for number in range(11)}
NUMBERS = dict(zip(EFFECTS, np.random.default_rng(0).normal(size=12), strict=True))


@pytest.fixture
def published_sweep(sweep, change_plan):
  """`published_sweep(values, goal, groups)`: a sweep with published results."""

  def make(values=NUMBERS, goal='min', groups=None, **settings):
    folder = sweep(
      **{'effects': EFFECTS, 'seeds': 2, 'diverged': ('', 0), 'failed': ('', 0)} | settings
    )
    change_plan(
      folder, published=Published(values=values, goal=goal, label='a & b', groups=groups or {})
    )
    return folder

  return make


def test_rho_and_its_interval_match_scipy(published_sweep):
  results = read_results(published_sweep())
  means = [row.summary.mean for row in results.rows]
  (found,) = agreements(results)
  assert found.n == 12
  np.testing.assert_allclose(found.rho, stats.spearmanr(means, [*NUMBERS.values()]).statistic)

  def spearman(x, y, axis):
    x, y = (stats.zscore(stats.rankdata(side, axis=axis), axis=axis) for side in (x, y))
    return np.mean(x * y, axis=axis)

  expected = stats.bootstrap(
    (means, [*NUMBERS.values()]), spearman, paired=True, method='percentile', random_state=0
  ).confidence_interval
  np.testing.assert_allclose([found.low, found.high], expected, atol=0.02)


def test_a_higher_published_number_may_be_better(published_sweep, change_plan):
  folder = published_sweep()
  (expected,) = agreements(read_results(folder))
  negative = {name: -value for name, value in NUMBERS.items()}
  change_plan(folder, published=Published(values=negative, goal='max', label='', groups={}))
  assert agreements(read_results(folder)) == [expected]


def test_groups_and_missing_variants(published_sweep):
  values = {name: NUMBERS[name] for name in list(NUMBERS)[:5]}
  folder = published_sweep(
    values, groups={'first': ('v0', 'v1', 'v2'), 'none': ('v0', 'v1', 'gone')}
  )
  every, first, none = agreements(read_results(folder))
  assert (every.n, first.n, none.n) == (5, 3, 2)
  assert none.rho is None and none.text() == 'not defined, n = 2' and none.note == ''
  assert 'n = 3; fewer than 10 variants: the interval is wide and approximate' in first.text()
  write_report(folder)
  text = (folder / 'report.md').read_text()
  assert (
    'measured means with: a &amp; b. Intervals' in text and f'| first | {first.text()} |' in text
  )
  assert report_data(read_results(folder))['published']['agreements'][1]['rho'] == first.rho


def test_equal_published_numbers_have_no_order(published_sweep):
  folder = published_sweep(values=dict.fromkeys(EFFECTS, 1.0))
  assert agreements(read_results(folder))[0].rho is None


def test_each_point_of_a_grid_has_a_correlation(published_sweep):
  folder = published_sweep(points=[{'Stack.num_layers': 2}, {'Stack.num_layers': 4}])
  assert [(item.point, item.n) for item in agreements(read_results(folder))] == [(0, 12), (1, 12)]
