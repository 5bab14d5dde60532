"""results.csv, the same for equal outcomes, and costs.csv, which depends on clocks and machines."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from t2x.sweeps.report.results import Entry, Results

__all__ = ['costs_csv', 'results_csv']

PLANNED = ('parameters', 'flops_per_token', 'tokens_per_step', 'num_steps', 'knob', 'gap')
CLOCKED = ('seconds', 'tokens_per_second', 'memory_bytes')


def results_csv(results: Results) -> str:
  """Tidy: one line a trial and metric, in the order of the plan; a trial without metrics has one.

  Metrics that end in `_per_second` or `seconds` are left out: they are different at every run.
  """
  lines = []
  for entry in results.entries:
    planned = [_cell(getattr(entry.trial, name)) for name in PLANNED]
    metrics: dict[str, Any] = dict(entry.outcome.metrics) if entry.outcome else {}
    told = sorted(one for one in metrics.items() if not one[0].endswith(('_per_second', 'seconds')))
    for name, value in told or [('', '')]:
      lines.append([*_trial(results, entry), entry.reason, name, _cell(value), *planned])
  header = [*_header(results), 'reason', 'metric', 'value', *PLANNED]
  return _csv([header, *lines])


def costs_csv(results: Results) -> str:
  """One line a trial that has ended: seconds, tokens a second, bytes of memory."""
  lines = [
    [*_trial(results, entry), *(_cell(getattr(entry.outcome, name)) for name in CLOCKED)]
    for entry in results.entries
    if entry.outcome
  ]
  return _csv([[*_header(results), *CLOCKED], *lines])


def _header(results: Results) -> list[str]:
  return ['sweep', 'variant', *results.axes, 'seed', 'identity', 'status']


def _trial(results: Results, entry: Entry) -> list[str]:
  trial = entry.trial
  point = [_cell(trial.point.get(axis)) for axis in results.axes]
  return [
    results.plan.name,
    trial.variant,
    *point,
    str(trial.seed),
    trial.identity,
    entry.status,
  ]


def _cell(value: Any) -> str:
  if value is None:
    return ''
  return value if isinstance(value, str) else json.dumps(value)


def _csv(lines: Iterable[Sequence[str]]) -> str:
  file = io.StringIO()
  csv.writer(file, lineterminator='\n').writerows(lines)
  return file.getvalue()
