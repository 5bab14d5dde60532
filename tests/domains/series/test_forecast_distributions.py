"""Distributions of forecasts against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from t2x.base.errors import UserError
from t2x.domains.series import PointForecast, Quantiles, StudentT

rng = np.random.default_rng(0)
LOC, SCALE = np.array([[3.0], [-50.0]], np.float32), np.array([[2.0], [0.1]], np.float32)
VALUES = (LOC + SCALE * rng.normal(size=(2, 5))).astype(np.float32)


def raw(number):
  return rng.normal(size=(2, 5, number)).astype(np.float32)


def test_student_t_equals_scipy():
  own = raw(3)
  parameters = StudentT().parameters(jnp.asarray(own), LOC, SCALE)
  freedom, centre, width = (np.asarray(parameters[..., i], np.float64) for i in range(3))
  theirs = stats.t(freedom, centre, width)
  losses = StudentT().loss(parameters, VALUES, SCALE)
  np.testing.assert_allclose(losses, -theirs.logpdf(VALUES), rtol=1e-5, atol=1e-5)
  levels = (0.1, 0.5, 0.9)
  quantiles = StudentT().quantiles(np.asarray(parameters), levels)
  np.testing.assert_allclose(quantiles, np.stack([theirs.ppf(p) for p in levels], -1), rtol=1e-5)
  np.testing.assert_allclose(StudentT().centre(parameters), own[..., 1] * SCALE + LOC, rtol=1e-6)
  assert (freedom > 2).all() and (width > 0).all()


def test_samples_of_student_t_are_of_its_distribution():
  parameters = jnp.broadcast_to(jnp.array([5.0, 2.0, 3.0]), (20_000, 3))
  samples = StudentT().sample(parameters, jax.random.key(0))
  assert stats.kstest(np.asarray(samples), stats.t(5, 2, 3).cdf).pvalue > 0.01


def test_extreme_outputs_of_student_t_are_finite():
  outputs = jnp.array([[-1e4, 0, -1e4], [1e4, 0, 1e4]])
  own = StudentT()
  parameters = own.parameters(outputs, jnp.zeros(2), jnp.ones(2))
  assert jnp.isfinite(own.loss(parameters, jnp.ones(2), jnp.ones(2))).all()


def test_the_loss_of_quantiles_is_least_at_those_of_the_values():
  values = rng.exponential(size=4001).astype(np.float32)
  own = Quantiles(levels=(0.1, 0.5, 0.8))
  best = jnp.asarray(np.quantile(values, own.levels), jnp.float32)

  def loss(quantiles):
    each = jnp.broadcast_to(quantiles, (len(values), 3))
    return own.loss(each, values, jnp.ones(1)).mean()

  least = loss(best)
  for i in range(3):
    for step in (-0.05, 0.05):
      assert loss(best.at[i].add(step)) > least
  # In units of the scale.
  each = jnp.broadcast_to(best, (len(values), 3))
  np.testing.assert_allclose(own.loss(each, values, 2 * jnp.ones(1)).mean(), least / 2, rtol=1e-6)


def test_quantiles_are_in_units_of_the_values_and_in_order():
  outputs, own = jnp.asarray(raw(9)), Quantiles()
  parameters = own.parameters(outputs, LOC, SCALE)
  np.testing.assert_allclose(parameters, outputs * SCALE[..., None] + LOC[..., None], rtol=1e-6)
  read = own.quantiles(np.asarray(parameters), (0.1, 0.9))
  np.testing.assert_array_equal(read, np.stack([parameters.min(-1), parameters.max(-1)], -1))
  np.testing.assert_array_equal(own.centre(parameters), parameters[..., 4])


def test_a_point_has_the_squared_error_and_no_samples():
  outputs = jnp.asarray(raw(1))
  parameters = PointForecast().parameters(outputs, LOC, SCALE)
  losses = PointForecast().loss(parameters, VALUES, SCALE)
  np.testing.assert_allclose(
    losses, (outputs[..., 0] - (VALUES - LOC) / SCALE) ** 2, rtol=1e-3, atol=1e-4
  )
  np.testing.assert_array_equal(
    PointForecast().quantiles(np.asarray(parameters), (0.1, 0.9))[..., 1], parameters[..., 0]
  )
  with pytest.raises(UserError, match='PointForecast has no samples'):
    PointForecast().sample(parameters, jax.random.key(0))
