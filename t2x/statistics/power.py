"""Power of paired comparisons: the probability of a verdict on a difference of a given size."""

import math

from t2x.statistics.distributions import normal_sf, t_isf
from t2x.statistics.summaries import ALPHA


def t_power(shift: float, freedom: float, level: float = ALPHA) -> float:
  """Returns the power of a two-sided t test, without verdicts in the wrong direction.

  The noncentral t distribution is approximated by a normal one (Johnson and Welch 1940).

  Args:
    shift: the difference in standard errors.
    freedom: degrees of freedom of the standard error.
    level: level of the test.
  """
  limit = float(t_isf(level / 2, freedom))
  normal = (limit * (1 - 1 / (4 * freedom)) - shift) / math.sqrt(1 + limit**2 / (2 * freedom))
  return float(normal_sf(normal))


def paired_power(effect: float, seeds: int, level: float = ALPHA) -> float:
  """Returns the power of one comparison.

  Args:
    effect: the difference in standard deviations of a run; runs of both variants have equal, independent noise.
    seeds: number of seeds of each variant.
    level: level of the test.
  """
  return t_power(effect * math.sqrt(seeds / 2), seeds - 1, level)
