"""Forecasts of time series from a context of the last values."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.base.calendar import CalendarField
from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Size
from t2x.domains.series.forecast_distributions import ForecastDistribution
from t2x.domains.series.sources import SeriesSource
from t2x.domains.series.windows import Windows, scale_of
from t2x.layers.keys import row_keys
from t2x.models import Inputs, Model, Output
from t2x.tasks.base import Task
from t2x.tasks.output import TaskOutput

__all__ = ['AutoregressiveForecast', 'Forecast']


@runtime_checkable
class ForecastModel(Model, Protocol):
  """Interface of models that forecast series.

  Attributes:
    horizon: number of future values.
    distribution: the distribution of a future value.
  """

  horizon: int
  distribution: ForecastDistribution

  def __call__(
    self, series: Float[Array, 'batch context channels'], *others: Array, key: Array | None = None
  ) -> Output:
    """Returns the parameters of the distributions, [batch, horizon, channels, parameters].

    Args:
      series: the context.
      *others: further arrays, those of `spec.inputs`.
      key: random keys of the rows; None in evaluation.
    """
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast(Task):
  """Predicts the `horizon` values of each channel after a context, by the loss of the model's distribution.

  Training reads every window of the split in random order; evaluation reads the windows that begin at multiples of
  `stride`. Missing values are NaN in the context, and have no weight in the loss; the same holds for channels without
  values in the context. Metrics: loss; mae, the mean absolute error of the forecast's mean, median or location. Errors
  are in units of the standard deviation of each channel over the train split, as in PatchTST and Informer, which
  standardise the values; the likelihood of `StudentT` is not standardised.

  Attributes:
    context: number of values of the context.
    horizon: number of predicted values.
    stride: number of values from one window to the next in evaluation.
  """

  context: Size
  horizon: Size
  stride: Size = 1

  inputs: ClassVar[Inputs] = {'series': 'series'}
  outputs: ClassVar[str] = 'forecast'
  head: ClassVar[str] = 'Forecaster'
  unit: ClassVar[str] = 'examples'

  @property
  def series_source(self) -> SeriesSource:
    """The source.

    Raises:
      UserError: it has no time series.
    """
    if not isinstance(self.source, SeriesSource):
      raise UserError(
        f'{type(self).__name__}.source = {self.source}: must be a source of time series, such as @SeriesFile()'
      )
    return self.source

  @property
  def fields(self) -> Sequence[str]:
    """Fields of the calendar of a row."""
    return ()

  def rows(self, split):
    """Returns the windows of a split.

    Raises:
      UserError: every series is shorter than a window.
    """
    self.check_split(split)
    training = self.series_source.load(self.train_split)
    windows = Windows(
      training if split == self.train_split else self.series_source.load(split),
      context=self.context,
      horizon=self.horizon,
      stride=1 if split == self.train_split else self.stride,
      fields=self.fields,
      scale=scale_of(training),
    )
    if not len(windows):
      raise UserError(
        f"no series of the split '{split}' of {self.source} has {self.context} + {self.horizon} values: decrease "
        f'{type(self).__name__}.context or horizon'
      )
    return windows

  def transform(self, *, train):
    """Returns None, or what selects the arrays of `spec`."""
    return SelectArrays(tuple(self.spec(1)))

  def spec(self, batch_size):
    """Returns series: float32 [batch, context, channels], future: float32 [batch, horizon, channels], scale: float32
    [batch, channels], weight: float32 [batch]."""
    channels = len(self.series_source.channels)

    def array(*shape: int) -> jax.ShapeDtypeStruct:
      return jax.ShapeDtypeStruct((batch_size, *shape), jnp.float32)

    return {
      'series': array(self.context, channels),
      'future': array(self.horizon, channels),
      'scale': array(channels),
      'weight': array(),
    }

  def check_model(self, model) -> None:
    """Also raises UserError if the model is no `ForecastModel`, or has another horizon."""
    super().check_model(model)
    if not isinstance(model, ForecastModel):
      raise UserError(
        f'{type(self).__name__} needs a model with the attributes horizon and distribution, which '
        f'@{type(model).__name__} lacks: define them, or use @{self.head}'
      )
    if model.horizon != self.horizon:
      raise UserError(
        f'{type(self).__name__}.horizon = {self.horizon}, but {type(model).__name__}.horizon = {model.horizon}: make '
        'them equal'
      )

  def target_weights(self, batch):
    """Returns 1 for each future value of a channel with a context, 0 for missing values, [batch, horizon, channels]."""
    has_context = (~jnp.isnan(batch['series'])).any(axis=1, keepdims=True)
    return (~jnp.isnan(batch['future']) & has_context) * batch['weight'][:, None, None]

  def predictions(
    self, model: Any, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> Output:
    """Returns the output of the model: parameters of its distribution [batch, horizon, channels, parameters]."""
    return model(batch['series'], key=key)

  def forecasts(self, model: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns what `quantiles` reads of a batch; a traced function."""
    return self.predictions(model, batch, None).x

  def quantiles(
    self, distribution: ForecastDistribution, forecasts: np.ndarray, levels: Sequence[float]
  ) -> np.ndarray:
    """Returns quantiles of the forecasts of one row, [horizon, channels, levels]."""
    return distribution.quantiles(forecasts, levels)

  def sums(self, model, batch, key):
    """Returns the loss and the absolute errors."""
    weights = self.weighted_targets(batch)
    out = self.predictions(model, batch, key)
    scale = batch['scale'][:, None]
    # A row of padding has the scale 0.
    scale = jnp.where(scale > 0, scale, 1)
    values = jnp.where(weights > 0, batch['future'], out.heads['loc'])
    losses = model.distribution.loss(out.x, values, scale)
    errors = jnp.abs(model.distribution.centre(out.x) - values) / scale
    sums = {
      name: ((value * weights).sum(), weights.sum())
      for name, value in (('loss', losses), ('mae', errors))
    }
    return TaskOutput(sums, out.aux)


@dataclasses.dataclass(frozen=True)
class SelectArrays:
  """Selects arrays of a row.

  Attributes:
    names: names of the arrays.
  """

  names: tuple[str, ...]

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator | None) -> dict[str, Any]:
    """Returns the arrays by name."""
    return {name: row[name] for name in self.names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoregressiveForecast(Forecast):
  """Forecasts each value from the values before it and a calendar; evaluators read quantiles of sampled paths.

  Attributes:
    context: number of values before the forecast: those of the model's context, and its largest lag before them.
    calendar: fields of the calendar.
    num_samples: number of sampled paths.
    seed: random seed of the paths; the same in every evaluation.
  """

  calendar: Sequence[CalendarField]
  num_samples: Size = 100
  seed: Natural = 0

  inputs: ClassVar[Inputs] = {'series': 'series', 'calendar': 'series', 'future': 'series'}
  head: ClassVar[str] = 'AutoregressiveForecaster'

  @property
  def fields(self):
    return self.calendar

  def spec(self, batch_size):
    """Also returns calendar: int32 [batch, context + horizon, fields]; index: int32 [batch], the window."""
    shape = batch_size, self.context + self.horizon, len(self.calendar)
    return super().spec(batch_size) | {
      'calendar': jax.ShapeDtypeStruct(shape, jnp.int32),
      'index': jax.ShapeDtypeStruct((batch_size,), jnp.int32),
    }

  def check_model(self, model):
    """Also raises UserError if the model has another calendar, or no samples."""
    super().check_model(model)
    if tuple(model.calendar) != tuple(self.calendar):
      name = type(self).__name__
      raise UserError(
        f'{name}.calendar = {list(self.calendar)}, but {type(model).__name__}.calendar = {list(model.calendar)}: make '
        'them equal'
      )

  def predictions(self, model, batch, key):
    """Returns the output of the model given the values of the future before each value."""
    return model(batch['series'], batch['calendar'], batch['future'], key=key)

  def forecasts(self, model, batch):
    """Returns sampled paths, [batch, samples, horizon, channels], which depend on the window and not on its batch."""
    keys = row_keys(jax.random.key(self.seed), batch['index'])
    return model.sample(batch['series'], batch['calendar'], num_samples=self.num_samples, key=keys)

  def quantiles(self, distribution, forecasts, levels):
    """Returns quantiles of the paths of one row."""
    return np.moveaxis(np.quantile(forecasts, levels, axis=0), 0, -1).astype(np.float32)
