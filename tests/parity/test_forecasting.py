"""Scores of forecasts against scoringrules; DLinear and Informer's embeddings against
neuralforecast, which pip cannot install beside its own trainer."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.calendar import CALENDAR_SIZES
from t2x.domains.series import (
  CalendarTables,
  CircularConvolution,
  Decomposition,
  Forecaster,
  SinusoidTables,
)
from t2x.domains.series.forecast_scores import LEVELS, window_scores
from tests.parity import archives

scoringrules = pytest.importorskip('scoringrules', reason="the extra 'references' is not installed")
rng = np.random.default_rng(0)
CONTEXT, HORIZON, WINDOW = 12, 3, 5
VALUES = rng.normal(size=(6, 2)).astype(np.float32)
QUANTILES = np.sort(rng.normal(size=(6, 2, len(LEVELS))).astype(np.float32), axis=-1)


def test_the_quantile_score_equals_scoringrules(compared):
  ours = window_scores(VALUES, QUANTILES, LEVELS)['crps']
  theirs = scoringrules.crps_quantile(VALUES, QUANTILES, np.array(LEVELS))
  compared(None, 'scoringrules', ours, theirs, atol=1e-6)


def test_many_quantiles_of_a_normal_distribution_have_its_crps(compared):
  from scipy import stats

  levels = (np.arange(999) + 1) / 1000
  quantiles = np.broadcast_to(stats.norm(0.3, 2).ppf(levels), (6, 2, 999))
  ours = window_scores(VALUES, quantiles, levels.tolist())['crps']
  compared(None, 'scoringrules', ours, scoringrules.crps_normal(VALUES, 0.3, 2), atol=5e-3)


@pytest.mark.nightly
def test_dlinear_equals_the_decomposition_of_neuralforecast_and_two_linear_layers(equal):
  torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
  modules = archives.module('neuralforecast', '3.3.0', 'neuralforecast.common._modules')

  class Theirs(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.decomposition = modules.SeriesDecomp(WINDOW)
      self.seasonal, self.trend = (
        torch.nn.Linear(CONTEXT, HORIZON, bias=bias) for bias in (True, False)
      )

    def forward(self, x):
      seasonal, trend = (part[..., 0] for part in self.decomposition(x[..., None]))
      return self.seasonal(seasonal) + self.trend(trend)

  x = rng.normal(size=(4, CONTEXT)).astype(np.float32)
  network = functools.partial(Decomposition, window=WINDOW)
  ours = Forecaster(context=CONTEXT, horizon=HORIZON, network=network, rngs=nnx.Rngs(0))

  def arrays(theirs, get):
    kernels = [get(part.weight).T for part in (theirs.seasonal, theirs.trend)]
    return {'out.kernel': np.concatenate(kernels), 'out.bias': get(theirs.seasonal.bias)[:, None]}

  theirs = Theirs()
  equal(
    'DLinear',
    'neuralforecast SeriesDecomp',
    theirs,
    ours,
    functools.partial(arrays, theirs),
    lambda theirs: theirs(torch.tensor(x)),
    lambda ours: ours.out(ours.network(jnp.asarray(x)).x)[..., 0],
  )


@pytest.mark.nightly
@pytest.mark.parametrize('kind', ['learned', 'fixed'])
def test_values_and_calendars_are_embedded_as_by_neuralforecast(equal, kind):
  torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
  modules = archives.module('neuralforecast', '3.3.0', 'neuralforecast.common._modules')
  width, features = 8, 5
  fields = ('month', 'day', 'weekday', 'hour', 'minute')
  sizes = [CALENDAR_SIZES[name] for name in fields]
  calendar = np.stack([rng.integers(0, n, (3, CONTEXT)) for n in sizes], axis=-1)
  x = rng.normal(size=(3, CONTEXT, features)).astype(np.float32)

  class Theirs(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.values = modules.TokenEmbedding(features, width)
      self.calendar = modules.TemporalEmbedding(width, kind, freq='t')

    def forward(self, x):
      return self.values(x) + self.calendar(torch.tensor(calendar))

  class Ours(nnx.Module):
    def __init__(self):
      tables = CalendarTables if kind == 'learned' else SinusoidTables
      self.values = CircularConvolution(width, features, rngs=nnx.Rngs(0))
      self.calendar = tables(width, fields, rngs=nnx.Rngs(0))

  theirs = Theirs()

  def arrays(get):
    kernel = get(theirs.values.tokenConv.weight).transpose(2, 1, 0)
    tables = [getattr(theirs.calendar, f'{name}_embed') for name in fields]
    learned = tables if kind == 'learned' else []
    own = {f'calendar.tables.{i}': get(table.weight) for i, table in enumerate(learned)}
    return {'values.convolution.kernel': kernel} | own

  equal(
    'Informer' if kind == 'learned' else None,
    'neuralforecast TokenEmbedding, TemporalEmbedding',
    theirs,
    Ours(),
    arrays,
    lambda theirs: theirs(torch.tensor(x)),
    lambda ours: ours.values(jnp.asarray(x)) + ours.calendar(jnp.asarray(calendar)),
  )
