"""Agreement of the measured order of the variants with the published one (`Sweep.published`)."""

import dataclasses
from collections.abc import Iterable

import numpy as np
from scipy import stats

from t2x.statistics.summaries import ALPHA
from t2x.statistics.two_way import informational
from t2x.sweeps.published import FEWEST
from t2x.sweeps.report.results import Results

_RESAMPLES = 10_000
# With fewer variants the bootstrap is a rough approximation.
FEW = 10


@dataclasses.dataclass(frozen=True)
class Agreement:
  """Spearman's rank correlation between measured means and published numbers.

  Attributes:
    point: index into `Results.points`.
    group: name of the group of variants; '' for all.
    n: number of variants.
    rho: 1 for the same order from best to worst, -1 for the opposite one; None with fewer than three
      variants or if one side is constant.
    low: lower end of its 95 % percentile bootstrap interval over the variants; None without `rho`, or if
      `rho` is 1 or -1.
    high: upper end of the interval.
  """

  point: int
  group: str
  n: int
  rho: float | None = None
  low: float | None = None
  high: float | None = None

  def text(self) -> str:
    """Returns the correlation in words: '0.41 (95 % interval -0.02 to 0.71), n = 12'."""
    if self.rho is None:
      return f'not defined, n = {self.n}'
    interval, note = 'no interval', f'; {self.note}' if self.note else ''
    if self.low is not None and self.high is not None:
      interval = f'{100 * (1 - ALPHA):.0f} % interval {self.low:.2f} to {self.high:.2f}'
    return f'{self.rho:.2f} ({interval}), n = {self.n}{note}'

  @property
  def note(self) -> str:
    """Limits of the interval; '' without any, or without `rho`."""
    if self.rho is None:
      return ''
    if self.low is None:
      return 'the order is the same in all resamples, which give no interval'
    if self.n < FEW:
      return f'fewer than {FEW} variants: the interval is wide and approximate'
    return ''


def agreements(results: Results) -> list[Agreement]:
  """Returns the correlations at each point of the grid: of all variants, then of each group."""
  published = results.plan.published
  if published is None:
    return []
  sign = 1 if published.goal == results.plan.goal else -1
  groups = {'': tuple(published.values), **published.groups}
  correlations = []
  for point in range(len(results.points)):
    means = {
      row.variant: row.summary.mean
      for row in results.rows
      if row.point == point and row.summary.mean is not None
    }
    for group, names in groups.items():
      pairs = [(means[name], sign * published.values[name]) for name in names if name in means]
      found = informational("Spearman's correlation", lambda pairs=pairs: _spearman(pairs))
      correlations.append(Agreement(point, group, len(pairs), *(found or ())))
  return correlations


def _spearman(pairs: Iterable[tuple[float, float]]) -> tuple[float, ...]:
  """Returns the correlation and its interval, as far as they are defined."""
  sides = np.array([*pairs]).reshape(-1, 2).T
  n = sides.shape[1]
  if n < FEWEST or any(len(np.unique(side)) == 1 for side in sides):
    return ()
  rho = float(stats.spearmanr(*sides).statistic)
  if abs(rho) > 1 - 1e-9:
    # All resamples have the same order, which does not measure the uncertainty.
    return (rho,)
  rows = np.random.default_rng(0).integers(n, size=(_RESAMPLES, n))
  first, second = (stats.rankdata(side[rows], axis=1) - (n + 1) / 2 for side in sides)
  scale = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
  # Resamples of a single variant have no order.
  valid = scale > 0
  resampled = (first * second).sum(axis=1)[valid] / scale[valid]
  low, high = np.quantile(resampled, [ALPHA / 2, 1 - ALPHA / 2])
  return rho, float(low), float(high)
