"""`t2x check` of a sweep file: plans every variant and traces its steps, without training."""

from collections.abc import Collection, Sequence
from pathlib import Path

from t2x import config as config_lib
from t2x.base.errors import UserError
from t2x.sweeps.plan import make_plan
from t2x.sweeps.plan_table import equal_variants
from t2x.sweeps.runners import distinct
from t2x.sweeps.sweep import read_sweep
from t2x.sweeps.tuning import plan_tuning
from t2x.train import Experiment, check_experiment


def check_sweep(file: Path, overrides: Sequence[str], num_devices: int | None = None) -> str:
  """Checks a sweep file and returns a one-line summary.

  Args:
    file: the sweep file.
    overrides: bindings `NAME=VALUE`.
    num_devices: number of devices of the mesh; None: computed from its sizes.

  Raises:
    UserError: a variant is invalid, with one line for each such variant.
  """
  sweep = read_sweep(file, overrides)

  def inspect(names: Collection[str], experiment: Experiment) -> None:
    check_experiment(experiment, num_devices, names)

  plan, _ = make_plan(sweep, _same_seconds, inspect)
  problems = {trial.problem: trial.variant for trial in plan.trials if trial.problem}
  if problems:
    lines = (f"{file}: variant '{variant}': {problem}" for problem, variant in problems.items())
    raise UserError('\n'.join(lines))
  trials, points = distinct(plan.trials), len([*sweep.points()])
  report = [
    f'a sweep of {len(plan.variants)} variants'
    + (f' at {points} points' if points > 1 else '')
    + f' with {len(sweep.seed_list)} seeds: {len(trials)} trials of '
    + f'{len({trial.program for trial in trials})} programs',
    *equal_variants(plan),
  ]
  if sweep.tune is not None:
    tuning = plan_tuning(sweep, _same_seconds, inspect)
    report += [f'{tuning.num_trials} tuning trials', *tuning.notes()]
  if sweep.match == 'seconds':
    report.append('budgets in seconds are only measured by `t2x sweep`')
  return '; '.join(report)


def _same_seconds(config: config_lib.Config, identity: str) -> float:
  """Returns seconds per step as if every training took one second, without a measurement."""
  return 1.0 / config.build().trainer.num_steps
