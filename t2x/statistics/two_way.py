"""Two-way model of a sweep (variant + seed) with unequal variances, for arrays of sweeps at once.

The metric of variant v with seed s is `mean[v] + effect[s] + noise`, where the noise has a variance of its
own for each variant. A difference to the baseline is the mean of the paired differences; its variance
is the sum of two noise variances:

- The noise variance of each variant is estimated from its residuals, from which the effects of the seeds,
  estimated from all variants, are removed (Shukla 1972, https://doi.org/10.1038/hdy.1972.87).
- It is moderated towards the typical variance of the sweep as in limma (Smyth 2004,
  https://doi.org/10.2202/1544-6115.1027), with four precautions, as the variances may differ by a factor
  of 100: the prior degrees of freedom come from an upper bound of the spread of the variances, outliers
  are not moderated (Phipson et al. 2016, https://doi.org/10.1214/16-AOAS920), moderation never reduces a
  variance, and the prior counts at most as much as the seeds for the baseline, whose variance is part
  of every comparison.
- The t statistic has Satterthwaite's degrees of freedom, reduced towards the smaller one of its two
  variances, because they are too large in the tails when there are few seeds.
- With fewer than `FEWEST` planned comparisons the variances can hardly be separated: paired t tests.
- Seeds that only the baseline has (`Sweep.baseline_seeds`) have an unknown effect, so they are not paired. They
  improve the mean of the baseline if the effects of the seeds are small: the difference is the mean
  of the paired differences plus the weighted difference between the means of the baseline at the paired and the
  unpaired seeds. The weight follows from the part of the noise in the baseline's variance over all its seeds.

The correction for all comparisons is that of Dunnett (1955): it uses that all comparisons share the noise
of the baseline. `experiments/statistics` measures error rates, power and coverage.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from t2x.statistics.distributions import chi2_ppf, f_sf, t_isf, t_sf

T = TypeVar('T')

# Comparisons with a baseline from which the noise of each variant is estimated.
FEWEST = 7

# Largest weight of the seeds that only the baseline has: with more, an overestimated noise would reduce the error.
_MOST = 0.5
# Confidence of the upper bounds of the spread of the variances and of the noise of the baseline.
_CONFIDENCE = 0.95
_ROUNDS = 3
# Reciprocal condition number below which a matrix counts as singular.
_SINGULAR = 1e-9


@dataclasses.dataclass(frozen=True)
class Contrasts:
  """Differences to the baseline, as arrays [..., comparisons].

  Attributes:
    difference: mean difference over the seeds that finished in both; the two-way model also uses the baseline's
      additional seeds.
    error: standard error of the difference.
    freedom: degrees of freedom of the standard error.
    shared: correlation of each comparison with the noise of the baseline, in [0, 1).
    deviation: standard deviation of a paired difference.
  """

  difference: np.ndarray
  error: np.ndarray
  freedom: np.ndarray
  shared: np.ndarray
  deviation: np.ndarray

  @property
  def p(self) -> np.ndarray:
    """Two-sided p-values without correction."""
    return 2 * t_sf(np.abs(self.difference) / self.error, self.freedom)

  def half_width(self, level: np.ndarray | float) -> np.ndarray:
    """Returns half the width of the interval of confidence 1 - level."""
    return self.error * t_isf(np.asarray(level) / 2, self.freedom)


def paired(values: np.ndarray) -> Contrasts:
  """Compares by paired t tests.

  Args:
    values: metric [..., variants, seeds], the baseline first; NaN: no value. Each variant has at least
      two seeds with the baseline.
  """
  differences = values[..., 1:, :] - values[..., :1, :]
  finished = np.isfinite(differences)
  count = finished.sum(-1)
  mean = np.where(finished, differences, 0).sum(-1) / count
  squares = np.where(finished, differences - mean[..., None], 0) ** 2
  deviation = np.sqrt(squares.sum(-1) / (count - 1))
  return Contrasts(mean, deviation / np.sqrt(count), count - 1.0, np.zeros_like(mean), deviation)


def contrasts(values: np.ndarray, planned: int) -> tuple[Contrasts, Contrasts | None]:
  """Compares by the planned test and, for information, by the alternative test.

  Args:
    values: as for `paired`.
    planned: number of planned comparisons with this baseline, which chooses the test. Results, such as failed variants,
      do not change the choice.

  Returns:
    The two-way model and paired t tests, or the reverse with fewer than `FEWEST` planned comparisons. With a single
    comparison there is no two-way model: paired t tests and None.
  """
  pairs = paired(values)
  if values.shape[-2] < 3:
    return pairs, None
  if planned < FEWEST:
    return pairs, informational('the two-way model', two_way, values)
  return two_way(values), pairs


def informational(name: str, function: Callable[..., T], *args: object) -> T | None:
  """Calls a function for information only; on failure warns and returns None, because a report must not fail."""
  try:
    return function(*args)
  except Exception as error:
    warnings.warn(f'{name} cannot be computed: {type(error).__name__}: {error}', stacklevel=2)
    return None


def two_way(values: np.ndarray) -> Contrasts:
  """Compares by the two-way model.

  Args:
    values: as for `paired`, with at least two comparisons.
  """
  pairs = paired(values)
  single = ~np.isfinite(values[..., 1:, :]).any(-2)
  single = single.reshape(-1, single.shape[-1]).all(0)
  variance, freedom = moderated(*noise_variances(values[..., ~single]))
  own, base = variance[..., 1:], variance[..., :1]
  own_freedom, base_freedom = freedom[..., 1:], freedom[..., :1]
  paired_seeds = np.isfinite(values[..., 1:, :] - values[..., :1, :])
  count = paired_seeds.sum(-1)
  effects = _effect_variance(values[..., 1:, ~single], own)
  most = base * base_freedom / chi2_ppf(1 - _CONFIDENCE, base_freedom)
  more = _baseline_seeds(values[..., 0, :], paired_seeds, single, effects, most)
  # Variance of a difference by part: the variant, the baseline at the paired seeds, and at the unpaired seeds.
  own_part, base_part = own / count, base * (1 - 2 * more.weight) / count
  of_baseline = base_part + more.variance
  of_baseline_freedom = of_baseline**2 / (
    base_part**2 / base_freedom + more.variance**2 / more.freedom
  )
  total = own_part + of_baseline
  satterthwaite = total**2 / (own_part**2 / own_freedom + of_baseline**2 / of_baseline_freedom)
  excess = satterthwaite - np.minimum(own_freedom, of_baseline_freedom)
  return Contrasts(
    pairs.difference + more.shift,
    np.sqrt(total),
    satterthwaite - np.maximum(excess, 0) * more.reduction,
    np.minimum(np.sqrt(of_baseline / total), 0.999),
    np.sqrt(own + base),
  )


@dataclasses.dataclass(frozen=True)
class _BaselineSeeds:
  """Contribution of the baseline's additional seeds, as arrays [..., comparisons].

  Attributes:
    weight: weight of these seeds in the mean of the baseline.
    shift: change of the difference.
    variance: variance of the shift without the covariance with the paired differences.
    freedom: degrees of freedom of the variance.
    reduction: fraction to subtract from Satterthwaite's degrees of freedom above the minimum. These seeds increase it,
      because the degrees of freedom of the parts then differ more; from simulations.
  """

  weight: np.ndarray | float
  shift: np.ndarray | float
  variance: np.ndarray | float
  freedom: np.ndarray | float
  reduction: np.ndarray | float


def _baseline_seeds(
  baseline: np.ndarray,
  pairs: np.ndarray,
  single: np.ndarray,
  effects: np.ndarray,
  noise: np.ndarray,
) -> _BaselineSeeds:
  """Weighs the baseline's additional seeds.

  Args:
    baseline: metric of the baseline [..., seeds].
    pairs: whether a seed finished in the variant and the baseline [..., comparisons, seeds].
    single: whether a seed is one of the baseline's additional seeds [seeds].
    effects: variance of the effects of the seeds [..., 1], estimated without the baseline: a weight from the
      estimated noise of the baseline would be wrong where the error is.
    noise: upper bound of the noise variance of the baseline [..., 1].
  """
  groups = [baseline[..., ~single], baseline[..., single]]
  counts = [np.isfinite(group).sum(-1, keepdims=True) for group in groups]
  count, others = pairs.sum(-1), counts[1]
  freedom = counts[0] + counts[1] - 2
  if not single.any() or (counts[1] == 0).any() or (freedom < 1).any():
    return _BaselineSeeds(0.0, 0.0, 0.0, 1.0, 1 / (count - 1))
  means = [np.nanmean(group, -1, keepdims=True) for group in groups]
  squares = [np.nansum((g - m) ** 2, -1, keepdims=True) for g, m in zip(groups, means, strict=True)]
  total = (squares[0] + squares[1]) / freedom
  noise_part = np.minimum(1 - effects / total, noise / total)
  weight = np.clip(noise_part, 0, 1) * others / (count + others)
  weight = np.minimum(weight, _MOST)
  paired_mean = np.where(pairs, baseline[..., None, :], 0).sum(-1) / count
  return _BaselineSeeds(
    weight,
    weight * (paired_mean - means[1]),
    weight**2 * total * (1 / count + 1 / others),
    freedom,
    np.minimum(0.9, 2.5 / (count - 1)),
  )


def _effect_variance(values: np.ndarray, noise: np.ndarray) -> np.ndarray:
  """Estimates the variance of the effects of the seeds [..., 1].

  Args:
    values: metric of the variants [..., variants, seeds].
    noise: their noise variances [..., variants].
  """
  finished = np.isfinite(values)
  share = _weights(noise)[..., None] * finished
  share = share / np.maximum(share.sum(-2, keepdims=True), 1e-300)
  effect = (share * np.where(finished, values - np.nanmean(values, -1, keepdims=True), 0)).sum(-2)
  of_noise = (share**2 * noise[..., None]).sum(-2).mean(-1)
  return np.maximum(effect.var(-1, ddof=1) - of_noise, 0)[..., None]


def noise_variances(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the estimated noise variance of each variant, and its degrees of freedom."""
  finished = np.isfinite(values)
  variants = values.shape[-2]
  count = finished.sum(-1)
  weights = np.full(values.shape[:-1], 1 / variants)
  identity = np.eye(variants)
  for _ in range(_ROUNDS):
    share = weights[..., None] * finished
    share = share / np.maximum(share.sum(-2, keepdims=True), 1e-300)
    squares = (_residuals(values, finished, share) ** 2).sum(-1) / (count - 1)
    # Expected squares: the variance of the variant plus the variances of the seed effects.
    mean_share = share.sum(-1) / count
    others = np.swapaxes(share**2, -1, -2)
    mixing = identity * (1 - 2 * mean_share)[..., None] + (finished / count[..., None]) @ others
    inverse = _inverse(mixing)
    variance = (inverse @ squares[..., None])[..., 0]
    variance = np.maximum(variance, np.maximum(0.02 * squares, 1e-300))
    used, weights = weights, _weights(variance)
  contrast = identity - used[..., None, :]
  covariance = (contrast * variance[..., None, :]) @ np.swapaxes(contrast, -1, -2)
  spread = np.einsum('...ij,...jk,...ik->...i', inverse, covariance**2, inverse, optimize=True)
  # The squares of variants without noise underflow.
  ratio = np.divide(variance**2, spread, out=np.ones_like(spread), where=spread > 0)
  return variance, np.clip(ratio, 0.25, 1) * (count - 1)


def _inverse(mixing: np.ndarray) -> np.ndarray:
  """Inverts matrices.

  If two variants have nearly all the weight, as with a saturated metric, their variances cannot be separated: the
  pseudoinverse makes them equal.
  """
  try:
    inverse = np.linalg.inv(mixing)
  except np.linalg.LinAlgError:
    return np.linalg.pinv(mixing, rcond=_SINGULAR)
  norms = [np.abs(matrix).sum(-1).max(-1) for matrix in (mixing, inverse)]
  if (norms[0] * norms[1] < 1 / _SINGULAR).all():
    return inverse
  return np.linalg.pinv(mixing, rcond=_SINGULAR)


def _weights(variance: np.ndarray) -> np.ndarray:
  """Returns weights of the variants in the effects of the seeds: at most three times the average."""
  typical = np.exp(np.log(variance).mean(-1, keepdims=True))
  weights = 1 / (variance + 0.2 * typical)
  weights = np.minimum(weights / weights.sum(-1, keepdims=True), 3 / variance.shape[-1])
  return weights / weights.sum(-1, keepdims=True)


def _residuals(values: np.ndarray, finished: np.ndarray, share: np.ndarray) -> np.ndarray:
  """Returns the residuals of the two-way model, 0 for missing values."""
  filled = np.where(finished, values, 0)
  count = finished.sum(-1, keepdims=True)
  effect = np.zeros_like(filled[..., :1, :])
  for _ in range(1 if finished.all() else 50):
    mean = (finished * (filled - effect)).sum(-1, keepdims=True) / count
    effect = (share * (filled - mean)).sum(-2, keepdims=True)
  mean = (finished * (filled - effect)).sum(-1, keepdims=True) / count
  return finished * (filled - mean - effect)


def moderated(variance: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns moderated variances [..., variants], the baseline first, and their degrees of freedom."""
  from scipy import special

  count = variance.shape[-1]
  logs = np.log(variance) - special.digamma(freedom / 2) + np.log(freedom / 2)
  center = logs.mean(-1, keepdims=True)
  spread = ((logs - center) ** 2).sum(-1, keepdims=True)
  spread = spread / chi2_ppf(1 - _CONFIDENCE, count - 1)
  excess = spread - special.polygamma(1, freedom / 2).mean(-1, keepdims=True)
  prior = np.where(excess > 0, 2 * _inverse_trigamma(np.maximum(excess, 1e-3)), 2000.0)
  typical = np.exp(center + special.digamma(prior / 2) - np.log(prior / 2))
  # A prior of up to two degrees of freedom has no mean.
  prior = np.maximum(prior - 2, 0) + np.zeros_like(variance)
  outlying = f_sf(variance / typical, freedom, np.maximum(prior, 0.1))
  prior = prior * np.minimum(1, 2 * outlying)
  prior[..., 0] = np.minimum(prior[..., 0], freedom[..., 0])
  pooled = (prior * typical + freedom * variance) / (prior + freedom)
  return np.maximum(variance, pooled), freedom + prior


def _inverse_trigamma(value: np.ndarray) -> np.ndarray:
  """Solves trigamma(x) = value by Newton's method, as limma does."""
  from scipy import special

  x = 0.5 + 1 / value
  for _ in range(8):
    trigamma = special.polygamma(1, x)
    x = x + trigamma * (1 - trigamma / value) / special.polygamma(2, x)
  return x


@functools.cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
  """Returns the nodes and weights of means over a standard normal distribution."""
  return np.polynomial.hermite_e.hermegauss(32)


def family_error(p: np.ndarray, shared: np.ndarray, groups: np.ndarray) -> np.ndarray:
  """Returns the probability that any comparison has a p-value of at most p by chance.

  Args:
    p: p-value without correction [...].
    shared: correlations of the comparisons with the noise of the baseline [..., comparisons].
    groups: integers of the shape of `shared`; comparisons of a group share the noise of a baseline.
  """
  from scipy import special

  limit = special.ndtri(np.clip(p, 1e-300, 1) / 2)[..., None]
  nodes, weights = _quadrature()
  rest = np.sqrt(1 - shared**2)
  none = np.ones(np.shape(p))
  for group in np.unique(groups):
    inside = np.zeros(np.shape(p))
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
      offset = shared * node
      within = special.ndtr((-limit - offset) / rest) - special.ndtr((limit - offset) / rest)
      inside = inside + weight * np.where(groups == group, within, 1).prod(-1)
    none = none * inside
  return np.clip(1 - none, 0, 1)


def single_level(shared: np.ndarray, level: float, groups: np.ndarray | None = None) -> np.ndarray:
  """Returns the level of each comparison at which the error of the family is `level`."""
  groups = np.zeros(shared.shape, int) if groups is None else groups
  low = np.full(shared.shape[:-1], np.log(level / max(1, shared.shape[-1])) - 1e-9)
  high = np.full_like(low, np.log(level))
  for _ in range(14):
    middle = (low + high) / 2
    small = family_error(np.exp(middle), shared, groups) <= level
    low, high = np.where(small, middle, low), np.where(small, high, middle)
  return np.exp(low)


def holm(p: np.ndarray) -> np.ndarray:
  """Corrects p-values [..., comparisons] by the method of Holm (1979, https://www.jstor.org/stable/4615733)."""
  order = np.argsort(p, -1, kind='stable')
  factors = np.arange(p.shape[-1], 0, -1)
  corrected = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factors, -1)
  result = np.empty_like(corrected)
  np.put_along_axis(result, order, corrected, -1)
  return np.minimum(result, 1)


def step_down(
  p: np.ndarray, shared: np.ndarray, groups: np.ndarray | None = None, exact_to: float = 1.0
) -> np.ndarray:
  """Corrects p-values for all comparisons by stepping down from the smallest.

  Args:
    p: p-values without correction [..., comparisons].
    shared: correlations of the comparisons with the noise of the baseline.
    groups: as for `family_error`; None: a single group.
    exact_to: corrected p-values above this value may be replaced by 1.
  """
  groups = np.zeros(shared.shape, int) if groups is None else groups
  order = np.argsort(p, -1, kind='stable')
  p, shared, groups = (np.take_along_axis(item, order, -1) for item in (p, shared, groups))
  corrected = np.ones_like(p)
  largest = np.zeros(p.shape[:-1])
  for index in range(p.shape[-1]):
    error = family_error(p[..., index], shared[..., index:], groups[..., index:])
    corrected[..., index] = largest = np.maximum(largest, error)
    if (largest > exact_to).all():
      break
  result = np.empty_like(corrected)
  np.put_along_axis(result, order, corrected, -1)
  return result
