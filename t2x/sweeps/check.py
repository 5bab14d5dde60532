"""`t2x check` of a sweep file: plans every variant and shapes its steps; trains and writes nothing."""

from collections.abc import Sequence
from pathlib import Path

from t2x import config as config_lib
from t2x.errors import UserError
from t2x.sweeps.plan import make_plan
from t2x.sweeps.plan_table import equal_variants
from t2x.sweeps.runners import distinct
from t2x.sweeps.sweep import read_sweep
from t2x.train import check_experiment


def check_sweep(file: Path, overrides: Sequence[str], num_devices: int | None = None) -> str:
  """Checks a sweep file, and says what it holds.

  Args:
    file: the sweep file.
    overrides: `NAME=VALUE` each.
    num_devices: the size of the mesh; None: what its sizes say.

  Raises:
    UserError: what is wrong with each variant, a line each.
  """
  sweep = read_sweep(file, overrides)
  plan, _ = make_plan(
    sweep, _same_seconds, lambda names, one: check_experiment(one, num_devices, names)
  )
  problems = {trial.problem: trial.variant for trial in plan.trials if trial.problem}
  if problems:
    lines = (f"{file}: variant '{variant}': {problem}" for problem, variant in problems.items())
    raise UserError('\n'.join(lines))
  trials, points = distinct(plan.trials), len([*sweep.points()])
  report = [
    f'a sweep of {len(plan.variants)} variants'
    + (f' at {points} points' if points > 1 else '')
    + f' with {len(sweep.seed_list)} seeds: {len(trials)} trials of '
    + f'{len({one.program for one in trials})} programs',
    *equal_variants(plan),
  ]
  if sweep.match == 'seconds':
    report.append('its budgets in seconds are measured by `t2x sweep`')
  return '; '.join(report)


def _same_seconds(config: config_lib.Config, identity: str) -> float:
  """Stands in for a measured step: all trainings take one second."""
  return 1.0 / config.build().trainer.num_steps
