"""Writes report.html, a single file with data, style and script that needs no network."""

import dataclasses
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

from t2x.base.html_page import html_page
from t2x.statistics.comparisons import MAX_SEEDS
from t2x.sweeps.report.agreement import agreements
from t2x.sweeps.report.curves import curves
from t2x.sweeps.report.fit import Fit
from t2x.sweeps.report.load import load_note
from t2x.sweeps.report.markdown import costs_method, decimals, details, method, other_test
from t2x.sweeps.report.results import COSTS, Results, Row
from t2x.sweeps.report.summary import label, looks, lost, matched, point_text, sentence, stability
from t2x.sweeps.report.tuning import tuning_data, verdict_data

_SHARED = ('core.js', 'charts.js', 'tables.js')
_SCRIPTS = ('scaling.js', 'tables.js', 'report.js', 'page.js')


def report_data(results: Results, fits: Sequence[Fit] = ()) -> dict[str, Any]:
  """Returns the data of the page without the curves, as printed by `t2x report --json`."""
  plan = results.plan
  content = {
    'name': plan.name,
    'result': sentence(results),
    'metric': plan.metric,
    'goal': plan.goal,
    'baseline': plan.baseline,
    'matched': plan.matched,
    'progress': results.progress(),
    'ended': results.ended,
    'trials': len(results.entries),
    'points': [point_text(results, index) for index in range(len(results.points))],
    'taus': [ranking.tau for ranking in results.rankings],
    'rows': [_row(results, row) for row in results.rows],
    'unfinished': [
      {
        'variant': label(results, row),
        'seed': entry.trial.seed,
        'status': entry.status,
        'reason': entry.reason,
      }
      for row, entry in lost(results)
    ],
    'versions': {name: ', '.join(values) for name, values in results.origins.items()},
    'warning': results.warning(),
    'damaged': [*results.damaged],
    'margin': plan.margin,
    'confidence': results.level.confidence,
    'look': results.level.text(plan),
    'looks': [dataclasses.asdict(look) for look in results.looks],
    'load': load_note(results),
    'tuning': tuning_data(results),
    'published': _published(results),
    'scaling': [fit.data() for fit in fits],
  }
  return _finite(content)


def _finite(value: object) -> Any:
  """Replaces numbers that are not finite by None, as JSON does not support them."""
  if isinstance(value, dict):
    return {name: _finite(item) for name, item in value.items()}
  if isinstance(value, list | tuple):
    return [_finite(item) for item in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(results: Results, row: Row) -> dict[str, Any]:
  summary, comparison, trial = row.summary, row.comparison, row.entries[0].trial
  published = results.plan.published
  return {
    'variant': row.variant,
    'label': label(results, row),
    'point': row.point,
    **verdict_data(row),
    'trials': len(row.entries),
    'failed': row.count('failed'),
    'std': summary.std,
    'low': summary.low,
    'high': summary.high,
    'pairs': comparison and comparison.pairs,
    'effect': comparison and comparison.effect,
    'p_other': comparison and comparison.p_other,
    'examples': comparison and comparison.examples,
    'more_seeds': comparison and comparison.more_seeds,
    'note': row.note,
    'costs': dict(row.costs),
    'fronts': [name for name, front in row.fronts.items() if front],
    'ranks': list(row.ranks) if row.ranks else None,
    'published': published and published.values.get(row.variant),
    'num_steps': trial.num_steps,
    'knob': trial.knob,
    'gap': trial.gap,
    'changes': len(trial.changes),
    'differences': trial.differences,
  }


def _published(results: Results) -> dict[str, Any] | None:
  if (published := results.plan.published) is None:
    return None
  correlations = [
    dataclasses.asdict(item) | {'text': item.text(), 'note': item.note}
    for item in agreements(results)
  ]
  return dataclasses.asdict(published) | {'agreements': correlations}


def page(results: Results, fits: Sequence[Fit] = ()) -> str:
  """Returns the content of report.html."""
  data = report_data(results, fits) | {
    'digits': decimals(results),
    'method': method(results),
    'details': details(results),
    'other_test': other_test(results),
    'budget': matched(results),
    'stability': stability(results),
    'reports': looks(results),
    'costs_method': costs_method(results),
    'cost_names': COSTS,
    'most_seeds': MAX_SEEDS,
    'config': results.plan.config,
    'curves': curves(results),
  }
  base, files = resources.files('t2x.base'), resources.files('t2x.sweeps.report')
  return html_page(
    body=files / 'report.html',
    title=f'{results.plan.name}: sweep report',
    styles=(base / 'page.css',),
    scripts=(*(base / name for name in _SHARED), *(files / name for name in _SCRIPTS)),
    data=data,
  )
