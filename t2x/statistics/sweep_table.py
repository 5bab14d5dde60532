"""Reads the results.csv of a sweep of t2x as a table; `t2x report` writes it."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import csv_rows, read_text
from t2x.base.json_files import read_json
from t2x.statistics.table import OPTIONAL, Columns, Start, Table, table_of


def read_sweep(folder: Path, args: argparse.Namespace) -> tuple[Table, Columns, dict[str, Any]]:
  """Reads a sweep: its metric, the points of its grid as sizes, and the tokens and parameters of its trials.

  Args:
    folder: OUT/NAME.
    args: options of the table; those of its columns are refused.

  Returns:
    The table, its columns, and `failed`, `baseline`, `goal`, `margin` and `edges` (edges of tuned values by variant).

  Raises:
    UserError: the folder has no report, or an option has no effect.
  """
  for name in ('variant', 'seed', *OPTIONAL):
    if getattr(args, name) is not None:
      raise UserError(
        f'--{name} has no effect on a sweep folder, whose columns are known: remove it'
      )
  path = folder / 'results.csv'
  try:
    plan = read_json(folder / 'sweep.json')
  except FileNotFoundError:
    raise UserError(
      f'{folder} is a folder without a sweep: pass a table or a sweep folder'
    ) from None
  if not path.exists():
    raise UserError(f'{path} does not exist: `t2x report {folder}` writes it')
  metrics = args.metric or [plan['metric']]
  rows = [*csv_rows(read_text(path).splitlines(keepends=True), where=lambda: f'{path}: ')]
  header = rows[0]
  axes = header[header.index('variant') + 1 : header.index('seed')]
  runs: dict[tuple[str, ...], dict[str, str]] = {}
  for row in rows[1:]:
    cells = dict(zip(header, row, strict=True))
    if cells['status'] not in ('finished', 'diverged'):
      continue  # As in reports, trials that failed are no results.
    size = ', '.join(f'{axis} = {cells[axis]}' for axis in axes)
    run = runs.setdefault(
      (cells['variant'], size, cells['seed']),
      {'variant': cells['variant'], 'size': size, 'seed': cells['seed']}
      | {'parameters': cells['parameters'], 'tokens': _tokens(cells)},
    )
    if cells['metric'] in metrics and cells['status'] == 'finished':
      run[cells['metric']] = cells['value']
  names = ['variant', 'size', 'seed', 'parameters', 'tokens', *metrics]

  def cells_of(start: Start) -> Iterator[tuple[int, list[str]]]:
    used = start(names, True)
    for number, run in enumerate(runs.values(), 1):
      yield number, [run.get(name, '') for name in used]

  columns = Columns(metrics=metrics)
  table = table_of(str(path), cells_of, columns, args.only)
  goal = plan['goal'] if not args.metric or args.metric[0] == plan['metric'] else None
  settings = {
    'failed': 'worst',
    'baseline': plan['baseline'],
    'goal': goal,
    'margin': plan.get('margin'),
  }
  return table, columns, settings | {'edges': _edges(folder)}


def _edges(folder: Path) -> dict[str, str]:
  """Returns the variants whose tuned value is the smallest or largest of its grid."""
  try:
    choices = read_json(folder / 'tuning.json')['choices']
  except FileNotFoundError:
    return {}
  return {choice['variant']: choice['edge'] for choice in choices if choice['edge']}


def _tokens(cells: dict[str, str]) -> str:
  if not cells['tokens_per_step'] or not cells['num_steps']:
    return ''
  return json.dumps(int(cells['tokens_per_step']) * int(cells['num_steps']))
