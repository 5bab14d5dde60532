"""Figures of a sweep for papers: differences, learning curves and tuned hyperparameters, as SVG and PDF."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from t2x.base.drawing import COLORS, DASHES, drawn
from t2x.statistics.formats import better
from t2x.sweeps.report.curves import curves
from t2x.sweeps.report.results import Results, Row
from t2x.sweeps.report.summary import label
from t2x.sweeps.report.tuning import tuning_data

if TYPE_CHECKING:
  from matplotlib.axes import Axes

_WIDTH = 5.5
# Markers and colours of report.html.
_MARKERS = {'helps': '^', 'hurts': 'v', 'same': 's'}
_VERDICT_COLORS = {'helps': '#0072b2', 'hurts': '#b84a00', 'same': '#00735a'}
# Variants in the legend of a figure of curves; the others are grey.
_MOST_LINES = 8

_Draw = Callable[[Any], None]


def write_figures(folder: Path, results: Results) -> list[Path]:
  """Writes FOLDER/figures/NAME.svg and NAME.pdf, and returns their paths.

  Names: `differences` (with their intervals), `curves` (mean over the seeds, and their range) and, for a tuned sweep,
  `tuning` (mean metric of the tuning seeds by value). A figure without data is left out.

  Raises:
    UserError: matplotlib is not installed, or a file cannot be written.
  """
  written = []
  for name, height, draw in _figures(results):
    paths = [folder / 'figures' / f'{name}{suffix}' for suffix in ('.svg', '.pdf')]
    with drawn(paths, _WIDTH, height) as figure:
      draw(figure.subplots())
    written += paths
  return written


def _figures(results: Results) -> Iterator[tuple[str, float, _Draw]]:
  """Yields name, height in inches, and drawing function of each figure."""
  compared = [
    row
    for row in results.rows
    if row.comparison is not None and row.comparison.difference is not None
  ]
  if compared:
    yield 'differences', 0.8 + 0.2 * len(compared), lambda axes: _forest(axes, results, compared)
  data = curves(results)
  if data['runs'] and data['metrics']:
    yield 'curves', 3.2, lambda axes: _curves(axes, results, data)
  tuning = tuning_data(results)
  if tuning is not None and any(point['n'] for row in tuning['rows'] for point in row['curve']):
    yield 'tuning', 3.2, lambda axes: _tuning(axes, results, tuning)


def _forest(axes: 'Axes', results: Results, rows: Sequence[Row]) -> None:
  """Draws the differences from the baseline, the first variant on top."""
  places = range(len(rows), 0, -1)
  axes.axvline(0, color='#5b636b', linewidth=0.8)
  if margin := results.plan.margin:
    axes.axvspan(-margin, margin, color='#f0f2f4', zorder=0)
  for place, row in zip(places, rows, strict=True):
    comparison, color = row.comparison, _VERDICT_COLORS.get(row.verdict, '#666e76')
    if comparison is None:
      continue
    low, high = comparison.interval
    if low is not None and high is not None:
      axes.plot([low, high], [place, place], color=color)
    marker = _MARKERS.get(row.verdict, 'o')
    face = color if row.verdict in _MARKERS else 'white'
    axes.plot(
      cast(float, comparison.difference),
      place,
      marker,
      color=color,
      markerfacecolor=face,
      markersize=4.5,
    )
  axes.set_yticks([*places], [f'{label(results, row)} ({row.verdict})' for row in rows])
  axes.set_ylim(0.4, len(rows) + 0.6)
  axes.grid(visible=False, axis='y')
  axes.set_xlabel(
    f'difference in {results.plan.metric} from {results.plan.baseline} ({better(results.plan.goal)}), '
    f'{results.level.confidence} intervals'
  )


def _curves(axes: 'Axes', results: Results, data: dict[str, Any]) -> None:
  """Draws the first metric of the report's curves: the mean over the finished seeds, and their range."""
  split, _, metric = data['metrics'][0].partition('/')
  for number, (row, style) in enumerate(_styles(results)):
    values: dict[int, list[float]] = {}
    for run in data['runs']:
      part = run['splits'].get(split)
      if run['row'] != results.rows.index(row) or run['status'] != 'finished' or part is None:
        continue
      pairs = zip(data['steps'][part['steps']], part['values'].get(metric, ()), strict=False)
      for step, value in pairs:
        if value is not None:
          values.setdefault(step, []).append(value)
    _band(
      axes,
      [(step, statistics.fmean(v), min(v), max(v)) for step, v in sorted(values.items())],
      style,
      zorder=3 - number / 1000,
    )
  axes.margins(x=0)
  axes.set_xlabel('steps')
  axes.set_ylabel(f'{metric} ({split})')
  axes.legend(loc='best', fontsize=7)


def _tuning(axes: 'Axes', results: Results, data: dict[str, Any]) -> None:
  """Draws the mean over the tuning seeds by value, with the tuned value as a dot."""
  by_place = {(row['variant'], row['point']): row for row in data['rows']}
  for row, style in _styles(results):
    tuned = by_place.get((row.variant, row.point))
    if tuned is None:
      continue
    points = [point for point in tuned['curve'] if point['mean'] is not None]
    _band(axes, [(p['value'], p['mean'], p['low'], p['high']) for p in points], style)
    chosen = [(p['value'], p['mean']) for p in points if p['value'] == tuned['chosen']]
    axes.plot(
      *zip(*chosen, strict=True), 'o', color=style['color'], markersize=4
    ) if chosen else None
  values = [point['value'] for row in data['rows'] for point in row['curve']]
  if min(values) > 0:
    axes.set_xscale('log')
    axes.set_xticks(sorted({*values}), [f'{value:g}' for value in sorted({*values})])
    axes.minorticks_off()
  axes.set_xlabel(', '.join(dict.fromkeys(row['parameter'] for row in data['rows'])))
  axes.set_ylabel(f'mean {data["metric"]}')
  axes.legend(loc='best', fontsize=7)


def _band(
  axes: 'Axes',
  points: Sequence[tuple[float, float, Any, Any]],
  style: dict[str, Any],
  **settings: Any,
) -> None:
  """Draws a mean and, where it is known, its range or interval: (x, mean, low, high) by point."""
  if not points:
    return
  x, mean, low, high = zip(*points, strict=True)
  axes.plot(x, mean, **style, **settings)
  if style['label']:
    lower, upper = (
      [math.nan if value is None else value for value in side] for side in (low, high)
    )
    axes.fill_between(x, lower, upper, color=style['color'], alpha=0.12, linewidth=0)


def _styles(results: Results) -> Iterator[tuple[Row, dict[str, Any]]]:
  """Yields the rows with their line styles; the baselines are black, and the variants after the first few grey."""
  number = 0
  for row in results.rows:
    text = label(results, row)
    if row.comparison is None:
      dash = DASHES[row.point % len(DASHES)]
      yield row, {'color': 'black', 'linestyle': dash, 'label': text}
      continue
    named = number < _MOST_LINES
    color = COLORS[number % len(COLORS)] if named else '#ccd1d6'
    dash = DASHES[number // len(COLORS) % len(DASHES)] if named else '-'
    yield row, {'color': color, 'linestyle': dash, 'label': text if named else None}
    number += 1
