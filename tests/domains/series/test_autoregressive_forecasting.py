"""Forecasts of one value after the other."""

import functools
import types

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.domains.series import AutoregressiveForecast, AutoregressiveForecaster, PointForecast
from t2x.domains.series.sources import Series, SeriesSource
from t2x.layers import MLP, MultiHeadAttention
from t2x.models import Block, Decoder, Encoder, Stack

CONTEXT, HORIZON, LAGS, FIELDS = 6, 4, (1, 2, 5), ('weekday', 'workday')
part = functools.partial


class Days(SeriesSource):
  """A series of 60 days of two channels with missing values; every third day is no working day."""

  channels = ('a', 'b')

  def series(self):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 2)).astype(np.float32)
    values[rng.uniform(size=values.shape) < 0.1] = np.nan
    times = (np.datetime64('2024-01-01') + np.arange(60)).astype('datetime64[m]')
    known = {'workday': (np.arange(60) % 3 > 0).astype(np.int32)}
    yield Series(name='days', times=times, values=values, ends=(40, 50, 60), known=known)


def task(**settings):
  settings = {'context': CONTEXT + max(LAGS), 'horizon': HORIZON, 'calendar': FIELDS} | settings
  return AutoregressiveForecast(source=Days(), num_samples=3, **settings)


def model(**settings):
  attention = part(MultiHeadAttention, num_heads=2)
  block = part(Block, mixer=attention, feed_forward=part(MLP, hidden_dim=8))
  settings = {
    'd_model': 8,
    'channels': 2,
    'context': CONTEXT,
    'horizon': HORIZON,
    'lags': LAGS,
    'calendar': FIELDS,
    'encoder': part(Encoder, stack=part(Stack, num_layers=2, blocks=[block])),
    'decoder': part(
      Decoder, stack=part(Stack, num_layers=2, blocks=[part(block, cross=attention)])
    ),
  } | settings
  return AutoregressiveForecaster(rngs=nnx.Rngs(0), **settings)


def batch_of(own, size=4):
  rows, transform = own.rows('train'), own.transform(train=False)
  examples = [transform(rows[i], None) for i in range(size)]
  return {name: jnp.stack([row[name] for row in examples]) for name in examples[0]}


def test_the_model_fits_the_task_and_reads_the_calendar_of_past_and_future():
  own, forecaster = task(), model()
  own.check_model(forecaster)
  batch = batch_of(own)
  assert batch['calendar'].shape == (4, CONTEXT + max(LAGS) + HORIZON, 2)
  assert batch['calendar'][0, :4].tolist() == [[0, 0], [1, 1], [2, 1], [3, 0]]
  before = own.predictions(forecaster, batch, None).x
  for place in (max(LAGS), -1):
    changed = batch | {'calendar': batch['calendar'].at[:, place, 0].add(1)}
    assert not np.allclose(own.predictions(forecaster, changed, None).x, before)


def test_a_forecast_depends_on_earlier_values_of_the_future_only():
  own, forecaster = task(), model()
  batch = batch_of(own)
  before = own.predictions(forecaster, batch, None)
  for place in range(HORIZON):
    changed = batch | {'future': batch['future'].at[:, place].set(9.0)}
    after = own.predictions(forecaster, changed, None)
    same = np.asarray(before.x == after.x).all(axis=(0, 2, 3))
    assert same[: place + 1].all() and not same[place + 1 :].any()
    np.testing.assert_array_equal(before.heads['scale'], after.heads['scale'])


def test_paths_do_not_depend_on_the_future_and_vary():
  own, forecaster = task(), model()
  batch = batch_of(own)
  paths = own.forecasts(forecaster, batch)
  assert paths.shape == (4, 3, HORIZON, 2) and np.isfinite(paths).all()
  np.testing.assert_array_equal(
    paths, own.forecasts(forecaster, batch | {'future': -batch['future']})
  )
  assert (np.asarray(paths).std(axis=1) > 0).all()
  other = task(seed=1).forecasts(forecaster, batch)
  assert not np.array_equal(paths, other)
  quantiles = own.quantiles(forecaster.distribution, np.asarray(paths[0]), (0.1, 0.5, 0.9))
  np.testing.assert_allclose(quantiles[..., 1], np.median(paths[0], axis=0), rtol=1e-6)


def test_the_paths_of_a_window_depend_on_neither_its_place_nor_its_batch():
  own, forecaster = task(), model()
  batch = batch_of(own)
  paths = own.forecasts(forecaster, batch)
  for places in ([3, 1, 2, 0], [2], [1, 1, 3]):
    part = {name: array[jnp.asarray(places)] for name, array in batch.items()}
    np.testing.assert_allclose(
      own.forecasts(forecaster, part), paths[jnp.asarray(places)], rtol=1e-5
    )
  # Windows with equal values have other paths.
  same = {name: array[jnp.zeros(4, int)] for name, array in batch.items()}
  assert not np.allclose(*own.forecasts(forecaster, same | {'index': batch['index']})[:2])


def test_each_path_has_the_distributions_of_a_forward_pass_over_it(monkeypatch):
  own, forecaster = task(), model()
  batch = batch_of(own)
  # The second parameter, the location, in place of a sample.
  monkeypatch.setattr(type(forecaster.distribution), 'sample', lambda self, p, key: p[..., 1])
  path = own.forecasts(forecaster, batch)[:, 0]
  out = forecaster(batch['series'], batch['calendar'], path)
  np.testing.assert_allclose(out.x[..., 1], path, rtol=1e-5, atol=1e-6)


def test_a_model_without_forecasts_is_refused_with_the_model_of_the_task():
  lacking = types.SimpleNamespace(spec=model().spec, __call__=None)
  with pytest.raises(UserError, match='lacks: define them, or use @AutoregressiveForecaster'):
    task().check_model(lacking)


def test_other_calendars_lags_and_distributions_are_errors():
  with pytest.raises(UserError, match=r"calendar = \['hour'\]: make them equal"):
    task(calendar=('weekday',)).check_model(model(calendar=('hour',)))
  with pytest.raises(UserError, match="'series' of shape"):
    task(context=CONTEXT).check_model(model())
  for lags in ((), (1, 1)):
    with pytest.raises(UserError, match='must have different numbers, at least one'):
      model(lags=lags)
  with pytest.raises(UserError, match=r'use @StudentT\(\)'):
    model(distribution=PointForecast())
