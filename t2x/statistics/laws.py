"""Scaling laws of the loss, L = E + A N^-alpha + B D^-beta, fitted to the trials of a sweep.

N is the number of parameters and D the number of training tokens. As in Hoffmann et al. 2022
(https://arxiv.org/abs/2203.15556, appendix D.3), the Huber loss of the residuals of log L is minimised from
several starts. Intervals are from a bootstrap over the seeds.
"""

import dataclasses
import itertools
import math

import numpy as np

from t2x.statistics.distributions import normal_sf, t_isf
from t2x.statistics.summaries import ALPHA

DELTA = 1e-3
_RESAMPLES = 300
# Exponents and parts of the smallest loss that E has at the starts of the search.
_EXPONENTS = (0.1, 0.4, 1.2)
_PARTS = (0.2, 0.6, 0.95)
_LARGEST_EXPONENT = 10
# Number of solutions for squared errors from which the robust loss is minimised.
_DESCENTS = 3


@dataclasses.dataclass(frozen=True)
class Law:
  """A fitted law, L = E + sum of factor * variable^-exponent.

  Attributes:
    offset: E, the loss at infinite size.
    factors: A, and B if there are two variables.
    exponents: alpha, and beta if there are two variables.
  """

  offset: float
  factors: tuple[float, ...]
  exponents: tuple[float, ...]

  def predict(self, sizes: np.ndarray) -> np.ndarray:
    """Returns the loss at sizes [n, variables]."""
    return self.offset + (np.array(self.factors) * sizes ** -np.array(self.exponents)).sum(axis=-1)

  @property
  def constants(self) -> np.ndarray:
    """E, then a factor and an exponent for each variable."""
    pairs = zip(self.factors, self.exponents, strict=True)
    return np.array([self.offset, *itertools.chain.from_iterable(pairs)])


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A number and its 95 % interval."""

  value: float
  low: float
  high: float


def fit_law(sizes: np.ndarray, losses: np.ndarray, delta: float = DELTA) -> Law:
  """Fits a law.

  Args:
    sizes: one row per trial, one positive column per variable.
    losses: positive loss of each trial.
    delta: residual of log L at which the Huber loss becomes linear; infinity for squared errors.
  """
  # Squared errors are minimised quickly from any start, and their solutions are near the robust one.
  squared = [_descend(sizes, losses, math.inf, start) for start in _starts(sizes, losses)]
  nearest = sorted(squared, key=lambda item: item[0])[:_DESCENTS]
  fits = [_descend(sizes, losses, delta, _to_vector(law, sizes)) for _, law in nearest]
  return min(fits, key=lambda item: item[0])[1]


class SeedBootstrap:
  """Laws fitted to resampled seeds, for intervals.

  Args:
    law: the law that was fitted to all trials.
    sizes: one row per size, one column per variable.
    losses: losses [sizes, seeds].
  """

  def __init__(self, law: Law, sizes: np.ndarray, losses: np.ndarray):
    self.law = law
    self.seeds = losses.shape[1]
    # All sizes have the same seeds, which are resampled together: their losses are correlated.
    draws = np.random.default_rng(0).integers(self.seeds, size=(_RESAMPLES, self.seeds))
    start = _to_vector(law, sizes)
    laws: dict[tuple[int, ...], Law] = {}
    for draw in np.sort(draws, axis=1):
      if (key := tuple(draw)) not in laws:
        repeated = np.repeat(sizes, self.seeds, axis=0)
        laws[key] = _descend(repeated, losses[:, draw].ravel(), DELTA, start)[1]
    self.laws = [laws[tuple(draw)] for draw in np.sort(draws, axis=1)]

  def constants(self) -> list[Estimate]:
    """Returns E, then a factor and an exponent for each variable."""
    samples = np.array([law.constants for law in self.laws])
    # The logarithms of factors are estimated, as factors range over orders of magnitude.
    estimates = [
      self._estimate(value, column, log=index % 2 == 1)
      for index, (value, column) in enumerate(zip(self.law.constants, samples.T, strict=True))
    ]
    # E and the exponents are not negative.
    return [dataclasses.replace(item, low=max(0.0, item.low)) for item in estimates]

  def predict(self, sizes: np.ndarray) -> list[Estimate]:
    """Returns the losses at sizes [n, variables]."""
    samples = np.array([law.predict(sizes) for law in self.laws])
    values = self.law.predict(sizes)
    return [self._estimate(*item) for item in zip(values, samples.T, strict=True)]

  def _estimate(self, value: float, samples: np.ndarray, log: bool = False) -> Estimate:
    """Returns a t interval with the standard error of the resamples, corrected for few seeds."""
    if log:
      inner = self._estimate(math.log(value), np.log(samples))
      return Estimate(value, math.exp(inner.low), math.exp(min(inner.high, 700.0)))
    # Half the distance of these quantiles is robust against resamples without a good fit.
    low, high = np.quantile(samples, normal_sf(np.array([1.0, -1.0])))
    error = (high - low) / 2 * math.sqrt(self.seeds / (self.seeds - 1))
    half = float(error * t_isf(ALPHA / 2, self.seeds - 1))
    return Estimate(float(value), float(value) - half, float(value) + half)


def _starts(sizes: np.ndarray, losses: np.ndarray) -> list[np.ndarray]:
  """Returns starts (log E, then log factor at the mean size and exponent for each variable)."""
  count = sizes.shape[1]
  starts = []
  for part in _PARTS:
    offset = part * losses.min()
    factor = math.log((losses.mean() - offset) / count)
    for exponents in itertools.product(_EXPONENTS, repeat=count):
      terms = itertools.chain.from_iterable((factor, exponent) for exponent in exponents)
      starts.append(np.array([math.log(offset), *terms]))
  return starts


def _descend(
  sizes: np.ndarray, losses: np.ndarray, delta: float, start: np.ndarray
) -> tuple[float, Law]:
  """Minimises the Huber loss of log L from a start; returns its value and the law."""
  from scipy import optimize

  logs = np.log(sizes) - np.log(sizes).mean(axis=0)
  targets = np.log(losses)

  def terms(vector: np.ndarray) -> np.ndarray:
    return np.column_stack([np.full(len(logs), vector[0]), vector[1::2] - vector[2::2] * logs])

  def residuals(vector: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce(terms(vector), axis=1) - targets

  def jacobian(vector: np.ndarray) -> np.ndarray:
    values = terms(vector)
    weights = np.exp(values - np.logaddexp.reduce(values, axis=1, keepdims=True))
    result = np.empty((len(logs), len(vector)))
    result[:, 0] = weights[:, 0]
    result[:, 1::2] = weights[:, 1:]
    result[:, 2::2] = -weights[:, 1:] * logs
    return result

  # Losses that grow with the size are no scaling law; terms may become negligible, but not zero.
  lowest = np.full(len(start), targets.min() - 20)
  highest = np.full(len(start), np.inf)
  lowest[2::2], highest[2::2] = 0, _LARGEST_EXPONENT
  start = np.clip(start, lowest + 1e-6, highest - 1e-6)
  robust = {'loss': 'huber', 'f_scale': delta} if math.isfinite(delta) else {}
  solution = optimize.least_squares(
    residuals, start, jacobian, bounds=(lowest, highest), x_scale='jac', max_nfev=500, **robust
  )
  return float(solution.cost), _to_law(solution.x, sizes)


def _to_law(vector: np.ndarray, sizes: np.ndarray) -> Law:
  exponents = vector[2::2]
  factors = np.exp(vector[1::2] + exponents * np.log(sizes).mean(axis=0))
  return Law(math.exp(vector[0]), tuple(map(float, factors)), tuple(map(float, exponents)))


def _to_vector(law: Law, sizes: np.ndarray) -> np.ndarray:
  exponents = np.array(law.exponents)
  vector = np.empty(1 + 2 * len(exponents))
  vector[0] = math.log(law.offset)
  vector[1::2] = np.log(law.factors) - exponents * np.log(sizes).mean(axis=0)
  vector[2::2] = exponents
  return vector
