"""Writes results.csv, which depends only on the outcomes, and costs.csv, with times and memory."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from t2x.sweeps.report.results import Entry, Results

PLANNED = ('parameters', 'flops_per_token', 'tokens_per_step', 'num_steps', 'knob', 'gap')
# First characters of cells that spreadsheets evaluate as formulas, including full-width ones.
_FORMULA = ('=', '+', '-', '@', '\t', '\r', '\n', '\uff1d', '\uff0b', '\uff0d', '\uff20')
CLOCKED = ('seconds', 'compile_seconds', 'tokens_per_second', 'memory_bytes', 'together')
LOAD = ('host', 'cpus', 'cores', 'load_before', 'load_after')


def results_csv(results: Results) -> str:
  """Returns a tidy table: one line per trial and metric, in the order of the plan.

  A trial without metrics has one line. Metrics that end in `_per_second` or `seconds` are left out,
  because they differ between runs. The last columns of a tuned sweep have the tuned value, and the tuning seed that
  chose it.
  """
  lines, tuned = [], results.plan.tuning == 'tuned'
  for entry in results.entries:
    # The number of steps is the number taken.
    planned = [
      _cell(getattr(entry if name == 'num_steps' else entry.trial, name)) for name in PLANNED
    ]
    if tuned:
      values = '; '.join(f'{k} = {v}' for k, v in entry.trial.tuned.items())
      planned += [values, _cell(entry.trial.tuned_by)]
    metrics: dict[str, Any] = dict(entry.outcome.metrics) if entry.outcome else {}
    items = sorted(m for m in metrics.items() if not m[0].endswith(('_per_second', 'seconds')))
    for name, value in items or [('', '')]:
      lines.append([*_trial(results, entry), entry.reason, name, _cell(value), *planned])
  header = [*_header(results), 'reason', 'metric', 'value', *PLANNED]
  return _csv([[*header, *(['tuned', 'tuned_by'] if tuned else [])], *lines])


def costs_csv(results: Results) -> str:
  """Returns a table with one line per ended trial: time, memory and load of the machine."""
  lines = []
  for entry in results.entries:
    if entry.outcome is not None:
      clocked = dataclasses.asdict(entry.outcome)
      load = clocked['conditions'] or {}
      values = [entry.step_seconds, *map(clocked.get, CLOCKED), *map(load.get, LOAD), entry.at_once]
      lines.append([*_trial(results, entry), *map(_cell, values)])
  return _csv([[*_header(results), 'step_seconds', *CLOCKED, *LOAD, 'at_once'], *lines])


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


def _cell(value: object) -> str:
  if value is None:
    return ''
  return value if isinstance(value, str) else json.dumps(value)


def _csv(lines: Iterable[Sequence[str]]) -> str:
  file = io.StringIO()
  csv.writer(file, lineterminator='\n').writerows([*map(_escape_formula, line)] for line in lines)
  return file.getvalue()


def _escape_formula(cell: str) -> str:
  """Prefixes text that spreadsheets would evaluate as a formula with a quote; numbers are unchanged."""
  return f"'{cell}" if cell.startswith(_FORMULA) and not _is_number(cell) else cell


def _is_number(cell: str) -> bool:
  try:
    return math.isfinite(float(cell))
  except ValueError:
    return False
