"""Forecasts of time series: batches, losses and scores."""

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.domains.series import (
  Decomposition,
  DrawnForecasts,
  Forecast,
  Forecaster,
  ForecastScores,
  MeanScaler,
  PointForecast,
  Quantiles,
  SeriesSource,
  StandardScaler,
  StudentT,
  scale_of,
)
from t2x.domains.series.forecast_scores import window_scores
from t2x.domains.series.sources import Series
from t2x.experiments import read_config
from t2x.tasks.evaluators import Evaluated
from t2x.tasks.prediction import predict

CONTEXT, HORIZON, SEASON = 8, 3, 4


@dataclasses.dataclass(frozen=True)
class Waves(SeriesSource):
  """Two series of two channels and of unequal length, with missing values."""

  channels = ('a', 'b')

  def series(self):
    for number, length in enumerate((60, 40)):
      rng = np.random.default_rng(number)
      values = rng.normal(size=(length, 2)).astype(np.float32) * [1, 30] + [0, 500]
      values = values.astype(np.float32)
      values[rng.uniform(size=values.shape) < 0.1] = np.nan
      times = np.datetime64('2020-01-01', 'm') + np.arange(length)
      ends = length // 2, length * 3 // 4, length
      yield Series(name=str(number), times=times, values=values, ends=ends)

  def fingerprint(self):
    return 'waves'


def task(**settings):
  return Forecast(source=Waves(), context=CONTEXT, horizon=HORIZON, **settings)


def forecaster(distribution=PointForecast(), **settings):
  network = settings.pop(
    'network', lambda context, rngs: Decomposition(context, window=3, rngs=rngs)
  )
  settings = {'context': CONTEXT, 'horizon': HORIZON, 'network': network} | settings
  return Forecaster(distribution=distribution, rngs=nnx.Rngs(0), **settings)


def batch_of(own, split='train', size=8):
  rows, transform = own.rows(split), own.transform(train=False)
  examples = [transform(rows[i], None) for i in range(size)]
  return {name: jnp.stack([row[name] for row in examples]) for name in examples[0]}


def test_batches_are_a_function_of_seed_and_step_with_the_arrays_of_the_spec():
  own = task()
  first, second = (own.batches(own.rows('train'), batch_size=4, seed=3) for _ in range(2))
  for step in (5, 0):
    a, b = first[step], second[step]
    assert {n: (s.shape, s.dtype) for n, s in own.spec(4).items()} == {
      n: (x.shape, x.dtype) for n, x in a.items()
    }
    for name in a:
      np.testing.assert_array_equal(a[name], b[name])
  assert not np.array_equal(first[0]['series'], first[1]['series'])
  other = own.batches(own.rows('train'), batch_size=4, seed=4)
  assert not np.array_equal(first[0]['series'], other[0]['series'])


@pytest.mark.parametrize('distribution', [PointForecast(), Quantiles(), StudentT()])
def test_the_future_changes_the_loss_and_no_input_location_scale_or_forecast(distribution):
  own, model = task(), forecaster(distribution)
  batch = batch_of(own)
  changed = batch | {'future': batch['future'] * 3 + 7}
  losses = [own.sums(model, b, None).metrics['loss'][0] for b in (batch, changed)]
  assert losses[0] != losses[1]
  outputs = [own.predictions(model, b, None) for b in (batch, changed)]
  for a, b in zip(*map(jax.tree.leaves, outputs), strict=True):
    np.testing.assert_array_equal(a, b)
  assert set(own.inputs) == {'series'}


def test_values_after_a_split_change_none_of_its_rows():
  class Later(Waves):
    def series(self):
      for one in super().series():
        values = one.values.copy()
        values[one.ends[0] :] = -1
        yield dataclasses.replace(one, values=values)

  for a, b in zip(
    task().rows('train'), dataclasses.replace(task(), source=Later()).rows('train'), strict=True
  ):
    for name in a:
      np.testing.assert_array_equal(a[name], b[name])


def test_missing_values_have_no_effect_and_finite_gradients():
  own, model = task(), forecaster(StudentT())
  batch = batch_of(own)
  assert np.isnan(batch['series']).any() and np.isnan(batch['future']).any()
  slopes, out = jax.grad(
    lambda model: (lambda out: (out.metrics['loss'][0], out))(own.sums(model, batch, None)),
    has_aux=True,
  )(model)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
  assert float(out.metrics['loss'][1]) == (~np.isnan(batch['future'])).sum()
  # A context without its missing values has the same location and scale.
  heads = model(batch['series']).heads
  np.testing.assert_allclose(heads['loc'][:, 0], np.nanmean(batch['series'], axis=1), rtol=1e-5)
  np.testing.assert_allclose(heads['scale'][:, 0], np.nanstd(batch['series'], axis=1), rtol=1e-4)
  nothing = batch['series'][:1].at[:, :, 0].set(jnp.nan)
  assert np.isfinite(model(nothing).x).all()


def in_loops(own, model, batch):
  """The mean loss of the observed values of a batch, one value after another in float64."""
  forecasts = np.asarray(own.predictions(model, batch, None).x, np.float64)[..., 0]
  train = np.concatenate([one['values'] for one in own.source.load('train')]).astype(np.float64)
  unit = np.nanstd(train, axis=0)
  errors = [
    (forecasts[i, t, c] - batch['future'][i, t, c]) / unit[c]
    for i, t, c in np.ndindex(batch['future'].shape)
    if not np.isnan(batch['future'][i, t, c]) and not np.isnan(batch['series'][i, :, c]).all()
  ]
  return np.mean(np.square(errors)), np.mean(np.abs(errors))


def test_errors_are_in_units_of_the_training_split():
  own, model = task(), forecaster()
  for split in ('train', 'validation'):
    batch = batch_of(own, split, 4)
    sums = own.sums(model, batch, None).metrics
    loss, error = in_loops(own, model, batch)
    assert float(sums['loss'][0] / sums['loss'][1]) == pytest.approx(loss, rel=1e-4)
    assert float(sums['mae'][0] / sums['mae'][1]) == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize('scaler', [StandardScaler(), MeanScaler()])
@pytest.mark.parametrize('value', [0.0, 3.0])
def test_a_flat_context_weighs_as_much_as_any_other(scaler, value):
  own, model = task(), forecaster(scaler=scaler)
  batch = {name: jnp.nan_to_num(array) for name, array in batch_of(own).items()}
  flat = batch | {'series': batch['series'].at[0, :, 0].set(value)}
  losses = [own.sums(model, b, None).metrics['loss'][0] for b in (batch, flat)]
  # All forecasts and values of the channel are within 6 units.
  assert abs(losses[1] - losses[0]) < 6**2 * HORIZON + losses[0]


def test_a_channel_without_values_in_the_context_has_no_weight():
  own, model = task(), forecaster()
  batch = {name: jnp.nan_to_num(array) for name, array in batch_of(own).items()}
  missing = batch | {'series': batch['series'].at[0, :, 1].set(jnp.nan)}
  changed = missing | {'future': missing['future'].at[0, :, 1].set(1e6)}
  assert float(own.weights(missing)['loss']) == batch['future'].size - HORIZON
  sums = [own.sums(model, b, None).metrics for b in (missing, changed)]
  assert all(float(s['loss'][0]) == float(sums[0]['loss'][0]) for s in sums)
  assert np.isfinite(float(sums[0]['loss'][0]))


def test_the_scale_of_a_constant_channel_is_1():
  values = np.array([[3, np.nan, 1], [3, np.nan, 2], [3, np.nan, np.nan]], np.float32)
  np.testing.assert_allclose(scale_of([{'values': values}]), [1, 1, 0.5])


def test_forecasts_that_are_nan_have_infinite_errors():
  """A model that fails in some windows must not be scored by the others."""
  future, levels = np.ones((4, 1)), (0.1, 0.5, 0.9)
  quantiles = np.ones((4, 1, 3))
  quantiles[2] = np.nan
  future[3] = np.nan
  scores = window_scores(future, quantiles, levels)
  np.testing.assert_array_equal(scores['mase'][:, 0], [0, 0, np.inf, np.nan])
  np.testing.assert_array_equal(scores['crps'][:, 0], [0, 0, np.inf, np.nan])
  np.testing.assert_array_equal(scores['coverage'][:, 0], [1, 1, 0, np.nan])


def test_each_channel_is_forecast_from_its_own_values():
  model, series = forecaster(), batch_of(task())['series']
  before, after = model(series).x, model(series.at[..., 1].add(5)).x
  np.testing.assert_array_equal(before[:, :, 0], after[:, :, 0])
  np.testing.assert_allclose(after[:, :, 1], before[:, :, 1] + 5, rtol=1e-5)


def evaluated(own, model):
  return Evaluated(
    task=own,
    watched=iter,
    model=lambda: model,
    rows=own.rows,
    evaluation=lambda *_: None,
    batch_size=4,
  )


def test_scores_are_those_of_scalar_loops_over_observed_values():
  own, model = task(stride=2), forecaster(Quantiles())
  metrics = ForecastScores(seasons=(SEASON, 2), split='test')(evaluated(own, model)).metrics
  rows, train = own.rows('test'), own.rows('train')
  outputs = [out for _, out in predict(model, rows, own.transform(train=False), own.forecasts, 4)]
  totals = {name: [[], []] for name in ('mase', 'crps', 'coverage', 'naive/mase')}
  for (row, out), channel in itertools.product(zip(rows, outputs, strict=True), (0, 1)):
    season = (SEASON, 2)[channel]
    past = train.examples[int(row['number'])]['values'][:, channel]
    unit = np.nanmean([abs(past[t] - past[t - season]) for t in range(season, len(past))])
    for t, value in enumerate(row['future'][:, channel]):
      at = CONTEXT - season + t % season
      while at >= 0 and np.isnan(row['series'][at, channel]):
        at -= season
      if np.isnan(value) or at < 0:
        continue
      quantiles = sorted(out[t, channel])
      totals['mase'][channel].append(abs(value - quantiles[4]) / unit)
      pinball = [
        (level - (value < q)) * (value - q)
        for level, q in zip(np.arange(1, 10) / 10, quantiles, strict=True)
      ]
      totals['crps'][channel].append(2 * np.mean(pinball) / unit)
      totals['coverage'][channel].append(quantiles[0] <= value <= quantiles[-1])
      totals['naive/mase'][channel].append(abs(value - row['series'][at, channel]) / unit)
  assert metrics['examples'] == len(rows)
  for name, (a, b) in totals.items():
    np.testing.assert_allclose(metrics[f'{name}/a'], np.mean(a), rtol=1e-5)
    np.testing.assert_allclose(metrics[name], (np.mean(a) + np.mean(b)) / 2, rtol=1e-5)
  # The score of a single number is its absolute error.
  np.testing.assert_allclose(metrics['naive/crps'], metrics['naive/mase'], rtol=1e-6)


def test_pictures_have_one_panel_for_each_window():
  own, model = task(), forecaster(Quantiles())
  draw = DrawnForecasts(seasons=(SEASON,), split='test', num_examples=3)
  images = draw(evaluated(own, model)).images
  assert images.keys() == {'a', 'b'}
  assert images['a'].shape == (440, 900, 3) and images['a'].dtype == np.uint8
  assert (images['a'] != images['b']).any()
  one = dataclasses.replace(draw, num_examples=1)(evaluated(own, model)).images['a']
  assert one.shape == (220, 450, 3)


def test_other_models_levels_and_seasons_are_errors():
  own = task()
  with pytest.raises(
    UserError, match="'series' of shape \\(8, 2\\), but @Forecaster reads the shape \\(9, any\\)"
  ):
    own.check_model(forecaster(context=9))
  with pytest.raises(UserError, match=r'Forecast.horizon = 3, but Forecaster.horizon = 2'):
    own.check_model(forecaster(horizon=2))
  lacking = SimpleNamespace(spec=forecaster().spec, __call__=None)
  with pytest.raises(
    UserError, match=r'Forecast needs a model with the attributes horizon and distribution'
  ):
    own.check_model(lacking)
  scores = ForecastScores(seasons=(SEASON,))
  with pytest.raises(UserError, match=r'no quantile of level 0.1: add it to Quantiles.levels'):
    scores.check(own, forecaster(Quantiles(levels=(0.4, 0.5, 0.6))))
  with pytest.raises(UserError, match=r'seasons = \[9\]: longer than the context of 8 values'):
    ForecastScores(seasons=(9,)).check(own, forecaster())
  with pytest.raises(UserError, match=r"must have one number, or one for each of \['a', 'b'\]"):
    ForecastScores(seasons=(2, 2, 2)).check(own, forecaster())
  with pytest.raises(UserError, match='be symmetric'):
    ForecastScores(seasons=(2,), levels=(0.1, 0.5, 0.8))
  with pytest.raises(UserError, match=r'has 100 \+ 3 values: decrease Forecast.context'):
    dataclasses.replace(own, context=100).rows('train')
  with pytest.raises(UserError, match='must increase'):
    Quantiles(levels=(0.5, 0.1))


@pytest.mark.parametrize('name', ['demand_patchtst', 'weather_dlinear'])
def test_the_shipped_models_fit_their_tasks(name):
  experiment = read_config([Path(__file__).parents[3] / f'configs/runs/{name}.gin'], []).build()
  experiment.task.check_model(experiment.shapes())
  for evaluator in experiment.evaluations.values():
    evaluator.check(experiment.task, experiment.shapes())
  assert {e.split for e in experiment.evaluations.values()} == {'test'}
  assert experiment.task.eval_split == 'validation'
  assert jnp.shape(experiment.shapes().out.bias) == (experiment.task.horizon, 9)
