"""Tuned values, sensitivity curves, and the verdicts before and after tuning."""

from typing import Any

from t2x.statistics.summaries import summarise
from t2x.sweeps.report.results import Results, Row
from t2x.sweeps.report.summary import label
from t2x.sweeps.tune import Choice, Tried


def tuning_data(results: Results) -> dict[str, Any] | None:
  """Returns the data of the tuning; None for a sweep without.

  Returns:
    seeds: tuning seeds.
    trials: number of tuning trials.
    untuned: progress of the sweep at the own values, from which `before` is; '' if it was not planned.
    rows: one entry for each of `results.rows`: variant, label, point (index), parameter, own value, `chosen` (the best
      mean over all tuning seeds), `tuned` (the values that the seeds chose, as text), edge ('', 'smallest' or
      'largest' of the tried values), note; `curve` with value, mean, low, high (95 % interval), n, diverged, failed
      and the number of tuning seeds that chose it (`chosen_by`) for each value in increasing order; `before` and
      `after` tuning: verdict, difference, difference_low, difference_high, p, mean, n, diverged. `before` is None as
      long as no seed has ended.
  """
  tuning = results.tuning
  if tuning is None:
    return None
  before = {}
  if results.untuned is not None:
    for row in results.untuned.rows:
      if row.summary.n or row.count('diverged'):
        before[row.variant, str(results.untuned.points[row.point])] = row
  rows = []
  for row in results.rows:
    point = results.points[row.point]
    choice = tuning.of(row.variant, point)
    if choice is not None:
      same = before.get((row.variant, str(point)))
      rows.append(
        _row(row, choice)
        | {
          'label': label(results, row),
          'before': same and verdict_data(same),
          'after': verdict_data(row),
        }
      )
  return {
    'metric': tuning.metric,
    'seeds': [*tuning.seeds],
    'trials': tuning.trials,
    'untuned': results.untuned.progress() if results.untuned else '',
    'rows': rows,
  }


def _row(row: Row, choice: Choice) -> dict[str, Any]:
  return {
    'variant': row.variant,
    'point': row.point,
    'parameter': choice.parameter,
    'own': choice.own,
    'chosen': choice.chosen,
    'tuned': choice.text,
    'edge': choice.edge,
    'note': choice.problem if choice.lost else choice.note,
    'curve': [
      _curve_point(tried) | {'chosen_by': [*choice.values.values()].count(tried.value)}
      for tried in choice.tried
    ],
  }


def _curve_point(tried: Tried) -> dict[str, Any]:
  summary = summarise([*tried.metrics.values()])
  return {
    'value': tried.value,
    'mean': summary.mean,
    'low': summary.low,
    'high': summary.high,
    'n': summary.n,
    'diverged': tried.diverged,
    'failed': tried.failed,
  }


def verdict_data(row: Row) -> dict[str, Any]:
  """Returns the verdict on a row, and the numbers that it rests on."""
  comparison = row.comparison
  low, high = comparison.interval if comparison else (None, None)
  return {
    'verdict': row.verdict,
    'difference': comparison and comparison.difference,
    'difference_low': low,
    'difference_high': high,
    'p': comparison and comparison.p_corrected,
    'mean': row.summary.mean,
    'n': row.summary.n,
    'diverged': row.count('diverged'),
  }
