"""Scores of forecasts beside those of the seasonal naive forecast, and pictures of forecasts with intervals."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from t2x.base.errors import UserError
from t2x.base.packages import imported
from t2x.base.ranges import Count, InnerFraction, Size
from t2x.data.sources.subset import spread
from t2x.domains.series.forecast import Forecast
from t2x.domains.series.windows import Windows, seasonal_naive
from t2x.parallel.placed import module_of
from t2x.tasks.base import Task
from t2x.tasks.evaluators import Evaluated, Evaluation, TaskEvaluator

__all__ = ['DrawnForecasts', 'ForecastScores']

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForecastEvaluator(TaskEvaluator):
  """Base class of evaluators that read quantiles of forecasts.

  Attributes:
    levels: levels of the quantiles, increasing and symmetric: the first and the last bound the interval, and the one in
      the middle is the forecast.
    seasons: number of values of a season of the seasonal naive forecast, of each channel, or one number for all.
  """

  levels: Sequence[InnerFraction] = LEVELS
  seasons: Sequence[Size]

  kinds: ClassVar[tuple[type[Task], ...]] = (Forecast,)

  def __post_init__(self):
    own = np.asarray(self.levels)
    if len(own) % 2 == 0 or (np.diff(own) <= 0).any() or not np.allclose(own + own[::-1], 1):
      raise UserError(
        f'{type(self).__name__}.levels = {list(self.levels)}: must increase, be symmetric and contain 0.5'
      )

  def check(self, task, model):
    """Also raises UserError if the model has no such quantiles, or the context is shorter than a season."""
    super().check(task, model)
    model.distribution.check_levels(self.levels)
    channels = task.series_source.channels
    if len(self.seasons) not in (1, len(channels)):
      raise UserError(
        f'{type(self).__name__}.seasons = {list(self.seasons)}: must have one number, or one for '
        f'each of {list(channels)}'
      )
    if task.context < max(self.seasons):
      raise UserError(
        f'{type(self).__name__}.seasons = {list(self.seasons)}: longer than the context of {task.context} values'
      )

  def _forecasts(self, evaluated: Evaluated) -> list[tuple[Mapping[str, Any], np.ndarray]]:
    """Returns windows with quantiles of their forecasts, [horizon, channels, levels]."""
    task, rows = evaluated.task, evaluated.rows(self._split(evaluated.task))
    indices = spread(min(self.num_examples or len(rows), len(rows)), len(rows))
    outputs = evaluated.predict([rows[i] for i in indices], task.forecasts)
    distribution = module_of(evaluated.model()).distribution
    return [(row, task.quantiles(distribution, out, self.levels)) for row, out in outputs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForecastScores(ForecastEvaluator):
  """Computes scores of forecasts by channel, and their means over channels.

  - mase: the mean absolute error of the median, divided by that of the forecast y[t - season] over the training split
    of the series (Hyndman and Koehler 2006).
  - crps: the mean over levels of twice the quantile score (scoringrules' crps_quantile), divided by the same.
  - coverage: the share of values between the first and the last quantile.

  `naive/mase` and `naive/crps` score the seasonal naive forecast for the same values. Both skip missing values, and
  values without a naive forecast. NaN forecasts have infinite errors.
  """

  def __call__(self, evaluated):
    """Returns the scores."""
    task = evaluated.task
    seasons = np.broadcast_to(self.seasons, len(task.series_source.channels)).tolist()
    errors = naive_errors(evaluated.rows(task.train_split), seasons)
    scores: dict[str, list[np.ndarray]] = {}
    pairs = self._forecasts(evaluated)
    for row, quantiles in pairs:
      naive = seasonal_naive(row['series'], task.horizon, seasons)
      future = np.where(np.isnan(naive), np.nan, row['future'])
      own = window_scores(future, quantiles, self.levels)
      flat = np.repeat(naive[..., None], len(self.levels), axis=-1)
      own |= {
        f'naive/{name}': values
        for name, values in window_scores(future, flat, self.levels).items()
        if name != 'coverage'
      }
      for name, values in own.items():
        scaled = values if name == 'coverage' else values / errors[int(row['number'])]
        scores.setdefault(name, []).append(scaled)
    metrics = {'examples': float(len(pairs))}
    for name, parts in scores.items():
      means = np.nanmean(np.stack(parts), axis=(0, 1))
      metrics[name] = float(means.mean())
      if len(means) > 1:
        channels = task.series_source.channels
        metrics |= {
          f'{name}/{channel}': float(m) for channel, m in zip(channels, means, strict=True)
        }
    return Evaluation(metrics)


def window_scores(
  future: Float[np.ndarray, 'horizon channels'],
  quantiles: Float[np.ndarray, 'horizon channels levels'],
  levels: Sequence[float],
) -> dict[str, Float[np.ndarray, 'horizon channels']]:
  """Returns the score of each value in its units; NaN for missing values, infinity for NaN forecasts."""
  own = np.asarray(levels)
  errors = future[..., None] - np.where(np.isnan(quantiles), np.inf, quantiles)
  inside = (errors[..., 0] >= 0) & (errors[..., -1] <= 0)
  return {
    'mase': np.abs(errors[..., len(own) // 2]),
    'crps': 2 * np.maximum(own * errors, (own - 1) * errors).mean(axis=-1),
    'coverage': np.where(np.isnan(future), np.nan, inside),
  }


def naive_errors(windows: Windows, seasons: Sequence[int]) -> list[Float[np.ndarray, ' channels']]:
  """Returns the mean absolute error of the forecast y[t - season] over each series of the training split."""

  def error(y: Float[np.ndarray, ' length'], season: int) -> float:
    return float(np.nanmean(np.abs(y[season:] - y[:-season])))

  series = [example['values'].T for example in windows.examples]
  return [np.array([error(y, m) for y, m in zip(one, seasons, strict=True)]) for one in series]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnForecasts(ForecastEvaluator):
  """Draws forecasts with their intervals, one channel in each picture, with the values and the end of the
  context; computes no metrics.

  Attributes:
    num_examples: number of windows, sampled evenly from the split.
    columns: number of windows in a row.
    past: number of values of the context that are drawn; None: all.
  """

  packages: ClassVar[tuple[str, ...]] = ('matplotlib',)

  num_examples: Count | None = 4
  columns: Size = 2
  past: Size | None = None

  fixed = frozenset({'num_examples'})

  def __call__(self, evaluated):
    """Returns a picture of each channel."""
    task, pairs = evaluated.task, self._forecasts(evaluated)
    names = task.series_source.channels
    return Evaluation(
      {}, (), {name: self._picture(pairs, channel, name) for channel, name in enumerate(names)}
    )

  def _picture(
    self, pairs: Sequence[tuple[Mapping[str, Any], np.ndarray]], channel: int, name: str
  ) -> np.ndarray:
    """Returns a picture of one channel, uint8 [height, width, 3]."""
    figures = imported('matplotlib.figure', 'DrawnForecasts')
    canvases = imported('matplotlib.backends.backend_agg', 'DrawnForecasts')
    columns = min(self.columns, len(pairs))
    lines = -(-len(pairs) // columns)
    figure = figures.Figure(figsize=(4.5 * columns, 2.2 * lines), dpi=100, layout='constrained')
    canvas = canvases.FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    middle = len(self.levels) // 2
    for axis, (row, quantiles) in zip(axes, pairs, strict=False):
      past = row['series'][-(self.past or len(row['series'])) :, channel]
      own, after = quantiles[:, channel], np.arange(len(quantiles))
      axis.fill_between(after, own[:, 0], own[:, -1], color='tab:orange', alpha=0.3, lw=0)
      axis.plot(after, own[:, middle], color='tab:orange', lw=1.2)
      axis.plot(np.arange(-len(past), 0), past, color='black', lw=0.8)
      axis.plot(after, row['future'][:, channel], color='black', lw=0.8)
      axis.axvline(-0.5, color='grey', lw=0.8, ls=':')
      axis.tick_params(labelsize=7)
    for axis in axes[len(pairs) :]:
      axis.remove()
    figure.supxlabel('values after the context', fontsize=8)
    figure.supylabel(name, fontsize=8)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
