"""Levels of repeated tests: alpha spending (Lan and DeMets 1983, https://doi.org/10.1093/biomet/70.3.659)."""

import math

from t2x.statistics.distributions import normal_isf, normal_sf
from t2x.statistics.summaries import ALPHA


def spent_level(seeds: int, max_seeds: int) -> float:
  """Returns the level spent by O'Brien and Fleming's function when this part of the seeds has ended."""
  limit = normal_isf(ALPHA / 2) / math.sqrt(min(1.0, seeds / max_seeds))
  return float(2 * normal_sf(limit))
