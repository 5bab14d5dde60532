"""`t2x sweep --confirm`: repeats the variants that help or hurt with fresh seeds.

The differences with which variants were selected are too large on average. Fresh seeds give estimates
without this bias, and tests with a correction for the few candidates only.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.sweeps.records import Plan
from t2x.sweeps.report import read_results
from t2x.sweeps.sweep import FEWEST, Sweep


def confirmation(
  sweep: Sweep, folder: Path, num_seeds: int | None = None
) -> tuple[Sweep, set[str]]:
  """Selects the candidates of a complete sweep.

  Args:
    sweep: the sweep.
    folder: OUT/NAME, with the results of the sweep.
    num_seeds: number of fresh seeds; None: the number of seeds of the variants.

  Returns:
    The sweep of the candidates with seeds that follow those of the results, and the candidates (see
    `keep`).

  Raises:
    UserError: the sweep has not ended, or has no candidates.
  """
  results = read_results(folder)
  if results.ended < len(results.entries):
    raise UserError(f'{folder}: {results.progress()}: run `t2x sweep` before --confirm')
  rows = [row for row in results.rows if row.verdict in ('helps', 'hurts')]
  if not rows:
    raise UserError(f'{folder}: no variant helps or hurts, so that there is nothing to confirm')
  first = 1 + max(trial.seed for trial in results.plan.trials)
  count = num_seeds or len(sweep.seed_list)
  candidates = tuple(dict.fromkeys(row.variant for row in rows))
  # More seeds of the baseline have an effect only among many candidates at a point.
  most = max(sum(row.point == point for row in rows) for point in range(len(results.points)))
  unbalanced = most >= FEWEST and (sweep.baseline_seeds or 0) > count
  fresh = dataclasses.replace(
    sweep,
    only=candidates,
    seeds=tuple(range(first, first + count)),
    max_seeds=None,
    baseline_seeds=sweep.baseline_seeds if unbalanced else None,
  )
  return fresh, {_cell(row.variant, results.points[row.point]) for row in rows}


def keep(plan: Plan, configs: Mapping[str, str], cells: set[str]) -> tuple[Plan, dict[str, str]]:
  """Keeps the trials of the candidates, and of the baseline at their points of the grid.

  Args:
    plan: the plan of all candidates at all points.
    configs: configs of the trials by folder.
    cells: the candidates, from `confirmation`.

  Returns:
    The plan, named NAME-confirm, and its configs.
  """
  points = {
    _key(trial.point) for trial in plan.trials if _cell(trial.variant, trial.point) in cells
  }
  trials = tuple(
    trial
    for trial in plan.trials
    if _cell(trial.variant, trial.point) in cells
    or (trial.variant == plan.baseline and _key(trial.point) in points)
  )
  folders = {trial.folder for trial in trials}
  kept = {folder: text for folder, text in configs.items() if folder in folders}
  return dataclasses.replace(plan, name=f'{plan.name}-confirm', trials=trials), kept


def _key(point: Mapping[str, Any]) -> str:
  return json.dumps(point, sort_keys=True)


def _cell(variant: str, point: Mapping[str, Any]) -> str:
  return json.dumps([variant, _key(point)])
