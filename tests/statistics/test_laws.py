"""Scaling laws: known exponents, and scipy's curve_fit for squared errors."""

import math

import numpy as np
import pytest
from scipy import optimize

from t2x.statistics.laws import SeedBootstrap, fit_law

# The constants of Hoffmann et al. 2022, at sizes of one machine.
SIZES = np.array([(n, d) for n in (1e5, 4e5, 2e6, 1e7) for d in (1e6, 1e7, 1e8)])


def chinchilla(sizes):
  n, d = sizes.T
  return 1.69 + 406.4 * n**-0.34 + 410.7 * d**-0.28


def power(sizes):
  return 2.0 + 90.0 * sizes[:, 0] ** -0.4


def noise(shape, scale, seed=0):
  return np.exp(scale * np.random.default_rng(seed).normal(size=shape))


def test_exact_losses_give_their_law():
  law = fit_law(SIZES, chinchilla(SIZES))
  np.testing.assert_allclose(law.constants, [1.69, 406.4, 0.34, 410.7, 0.28], rtol=1e-3)
  next_size = np.array([[1e8, 1e9]])
  np.testing.assert_allclose(law.predict(next_size), chinchilla(next_size), rtol=1e-5)
  sizes = np.geomspace(1e4, 1e7, 5)[:, None]
  np.testing.assert_allclose(fit_law(sizes, power(sizes)).constants, [2.0, 90.0, 0.4], rtol=1e-3)


def test_squared_errors_match_curve_fit():
  sizes = np.repeat(np.geomspace(1e4, 1e7, 6), 3)[:, None]
  losses = power(sizes) * noise(len(sizes), 0.01)

  def model(x, offset, log_factor, exponent):
    return np.log(offset + np.exp(log_factor - exponent * np.log(x)))

  expected, _ = optimize.curve_fit(model, sizes[:, 0], np.log(losses), p0=(1.5, 4.0, 0.5))
  expected[1] = math.exp(expected[1])
  found = fit_law(sizes, losses, delta=math.inf)
  np.testing.assert_allclose(found.constants, expected, rtol=1e-3)


def test_an_outlier_moves_the_robust_fit_less():
  sizes = np.repeat(SIZES, 3, axis=0)
  losses = chinchilla(sizes) * noise(len(sizes), 0.001)
  losses[4] *= 1.5
  errors = [
    abs(fit_law(sizes, losses, **settings).exponents[0] - 0.34)
    for settings in ({}, {'delta': math.inf})
  ]
  assert errors[0] < 0.01 < errors[1]


def test_the_search_ends_at_the_lowest_objective():
  sizes = np.repeat(SIZES, 3, axis=0)
  losses = chinchilla(sizes) * noise(len(sizes), 0.005)

  def objective(vector):
    offset, first, alpha, second, beta = vector
    n, d = np.log(sizes).T
    terms = [np.full(len(n), offset), first - alpha * n, second - beta * d]
    absolute = np.abs(np.logaddexp.reduce(terms) - np.log(losses))
    return np.where(absolute <= 1e-3, absolute**2 / 2, 1e-3 * (absolute - 5e-4)).sum()

  offset, first, alpha, second, beta = fit_law(sizes, losses).constants
  own = np.array([math.log(offset), math.log(first), alpha, math.log(second), beta])
  better = optimize.minimize(objective, own, method='Nelder-Mead', options={'maxiter': 4000})
  assert objective(own) < 1.001 * better.fun


def test_intervals_contain_the_constants_and_narrow_with_less_noise():
  sizes = np.geomspace(1e4, 1e7, 5)[:, None]
  widths = []
  for scale in (0.01, 0.001):
    losses = power(sizes)[:, None] * noise((5, 5), scale)
    law = fit_law(np.repeat(sizes, 5, axis=0), losses.ravel())
    bootstrap = SeedBootstrap(law, sizes, losses)
    estimates = bootstrap.constants()
    for estimate, true in zip(estimates, (2.0, 90.0, 0.4), strict=True):
      assert estimate.low < true < estimate.high
    widths.append(estimates[2].high - estimates[2].low)
    (prediction,) = bootstrap.predict(np.array([[1e8]]))
    assert prediction.low < power(np.array([[1e8]])) < prediction.high
  assert widths[1] < widths[0] / 3


@pytest.mark.nightly
def test_intervals_have_their_coverage():
  """With noise that the seeds share and noise of each trial."""
  sizes = np.geomspace(1e4, 1e7, 5)[:, None]
  inside, count = 0, 100
  for number in range(count):
    losses = (
      power(sizes)[:, None] * noise((5, 5), 0.005, number) * noise((1, 5), 0.005, 9999 + number)
    )
    law = fit_law(np.repeat(sizes, 5, axis=0), losses.ravel())
    exponent = SeedBootstrap(law, sizes, losses).constants()[2]
    inside += exponent.low < 0.4 < exponent.high
  assert inside / count > 0.9
