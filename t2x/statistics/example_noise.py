"""Noise of the evaluated examples in the comparison of two variants.

All trials evaluate the same examples, a sample of the population in the conclusion. A difference d[s, x] of the metric
with seed s at example x is the sum of a mean, an effect of the seed, an effect of the example and an interaction. The
standard error over the seeds contains the effect of the seed and the interaction. `variance` estimates the contribution
of the example effects by the method of moments (two-way layout with random effects, Scheffe 1959, chapter 7): only
examples count at which the variants differ with most seeds, such as images that only one variant classifies correctly.
With deterministic models it is the variance of McNemar's test.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from t2x.statistics.distributions import t_isf, t_sf


def variance(differences: np.ndarray) -> float:
  """Estimates the part of the variance of the mean difference that the effects of the examples cause.

  Args:
    differences: differences of two variants [seeds, examples].
  """
  seeds, count = differences.shape
  of_examples = differences.mean(0)
  total = of_examples.var(ddof=1)
  # The mean over the seeds contains a share of the interaction, which the seeds' standard error contains as well.
  interaction = 0.0
  if seeds > 1:
    residuals = differences - of_examples - differences.mean(1, keepdims=True) + of_examples.mean()
    interaction = (residuals**2).sum() / ((seeds - 1) * (count - 1)) / seeds
  return max(0.0, float(total - interaction)) / count


@dataclasses.dataclass(frozen=True)
class ExampleNoise:
  """Contribution of the evaluated examples to the variance of a difference.

  Intervals and p-values use the wider of two results: with the variance of the seeds, and with the sum of both
  variances and Satterthwaite's degrees of freedom. The second is narrower if few seeds contribute only a small
  part of the sum.

  Attributes:
    variance: the added variance; 0 if it is unknown.
    count: number of examples; None if their values are not recorded.
  """

  variance: float = 0.0
  count: int | None = None

  @classmethod
  def of(
    cls, variant: Mapping[int, np.ndarray], baseline: Mapping[int, np.ndarray], seeds: list[int]
  ) -> 'ExampleNoise':
    """Estimates the noise from each example's values by seed; unknown unless all seeds evaluated the same examples."""
    pairs = [
      (variant[seed], baseline[seed]) for seed in seeds if seed in variant and seed in baseline
    ]
    if len(pairs) < len(seeds) or len({side.shape for pair in pairs for side in pair}) != 1:
      return cls()
    differences = np.array([own.astype(np.float64) - other for own, other in pairs])
    return cls(variance(differences), differences.shape[1])

  def total(self, error: float, freedom: float) -> tuple[float, float]:
    """Returns the standard error with both variances and its degrees of freedom; `error`, `freedom`: of the seeds."""
    if not self.variance or self.count is None:
      return error, freedom
    total = error**2 + self.variance
    parts = error**4 / max(freedom, 1.0) + self.variance**2 / (self.count - 1)
    return math.sqrt(total), total**2 / parts

  def half_width(self, error: float, freedom: float, level: float) -> float:
    """Returns half the width of the interval of confidence 1 - level, given the noise of the seeds."""
    both = ((error, freedom), self.total(error, freedom))
    return max(e * float(t_isf(level / 2, f)) if e else 0.0 for e, f in both)

  def p(self, p: float, difference: float, error: float, freedom: float) -> float:
    """Returns the two-sided p-value of a difference, given that of the seeds and their noise."""
    if not self.variance:
      return p
    total, of_total = self.total(error, freedom)
    return max(p, float(2 * t_sf(abs(difference) / total, of_total)))
