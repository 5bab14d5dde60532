"""Stages of a sweep, each with a plan and a folder of its own.

OUT/NAME-tune      the tuning trials (`Sweep.tune`), in several rounds if the grid is extended or values are dropped
OUT/NAME           the result; every variant at its tuned value
OUT/NAME-untuned   every variant at its own value with the same seeds, for a comparison with the result
OUT/NAME-confirm   the variants that help or hurt, with fresh seeds (`--confirm`)
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from t2x.base.errors import UserError
from t2x.sweeps.plan import StepSeconds, make_plan
from t2x.sweeps.plan_table import tuning_table
from t2x.sweeps.records import Plan
from t2x.sweeps.sweep import FEWEST, Sweep
from t2x.sweeps.tune import Tuning, read_tuning
from t2x.sweeps.tuning import TuningPlan, extended, plan_tuning, tuned_arms

StageName = Literal['', 'tune', 'untuned', 'confirm']


@dataclasses.dataclass(frozen=True)
class Stage:
  """A stage to run.

  Attributes:
    name: suffix of its folder; '' for the result.
    configs: configs of its trials by folder.
    notes: lines to print before the plan.
    tuning: the tuned values, if the stage is the first one that uses them.
  """

  name: StageName
  plan: Plan
  configs: Mapping[str, str]
  notes: tuple[str, ...] = ()
  tuning: Tuning | None = None

  @property
  def is_last(self) -> bool:
    """Whether no other stage follows."""
    return self.plan.tuning in ('none', 'untuned')


def folder_of(out: Path, name: str, stage: str) -> Path:
  """Returns the folder of a stage of the sweep NAME."""
  return out / (f'{name}-{stage}' if stage else name)


def stages(sweep: Sweep, out: Path, measure: StepSeconds | None) -> Iterator[Stage]:
  """Yields the stages of a sweep. The trials of each must have ended before the next one is requested.

  Args:
    sweep: the sweep.
    out: output folder; the trials are in out/trials.
    measure: as for `make_plan`.
  """
  if sweep.tune is None:
    yield Stage('', *make_plan(sweep, measure))
    return
  trials, planned = out / 'trials', plan_tuning(sweep, measure)
  notes = (_overview(sweep, planned), *planned.notes())
  while True:
    plan, configs, _ = planned.next(trials)
    yield Stage('tune', plan, configs, notes)
    *_, tuning = planned.next(trials)
    if tuning is None:
      continue
    if any(choice.lost for choice in tuning.choices if choice.variant == sweep.baseline):
      raise UserError(
        f"no tuning trial of the baseline '{sweep.baseline}' finished, so that nothing can be compared: see the logs in "
        f'{trials}, correct the cause, and run the same command with --retry',
        1,
      )
    larger = extended(sweep, planned, tuning, measure)
    if larger is None:
      break
    planned = larger
  plan, configs = make_plan(sweep, measure, arms=tuned_arms(sweep, tuning), inputs=planned.inputs)
  plan = dataclasses.replace(plan, tuning='tuned')
  yield Stage('', plan, configs, (notes[0], tuning_table(tuning)), tuning)
  plan, configs = make_plan(sweep, measure, inputs=planned.inputs)
  plan = dataclasses.replace(plan, name=f'{plan.name}-untuned', tuning='untuned')
  yield Stage('untuned', plan, configs, notes[:1])


def confirm_stage(
  sweep: Sweep, out: Path, measure: StepSeconds | None, num_seeds: int | None
) -> Stage:
  """Returns the stage that repeats the variants that help or hurt with fresh seeds.

  The differences with which variants were selected are too large on average. Fresh seeds give estimates without
  this bias, and tests with a correction for the few candidates only.

  Args:
    sweep: the sweep.
    out: output folder with the results of the sweep.
    measure: as for `make_plan`.
    num_seeds: number of fresh seeds, which follow those of the results; None: the number of seeds of the sweep.

  Raises:
    UserError: the sweep has not ended, or no variant helps or hurts.
  """
  # Reads the report, which requires an extra.
  from t2x.sweeps.report import read_results

  folder = folder_of(out, sweep.name, '')
  results = read_results(folder)
  if results.ended < len(results.entries):
    raise UserError(f'{folder}: {results.progress()}: run `t2x sweep` before --confirm')
  rows = [row for row in results.rows if row.verdict in ('helps', 'hurts')]
  if not rows:
    raise UserError(f'{folder}: no variant helps or hurts, so that there is nothing to confirm')
  first = 1 + max(trial.seed for trial in results.plan.trials)
  count = num_seeds or len(sweep.seed_list)
  # More seeds of the baseline have an effect only among many candidates at a point.
  most = max(sum(row.point == point for row in rows) for point in range(len(results.points)))
  unbalanced = most >= FEWEST and (sweep.baseline_seeds or 0) > count
  fresh = dataclasses.replace(
    sweep,
    only=tuple(dict.fromkeys(row.variant for row in rows)),
    seeds=tuple(range(first, first + count)),
    max_seeds=None,
    baseline_seeds=sweep.baseline_seeds if unbalanced else None,
  )
  cells = [
    (name, results.points[row.point]) for row in rows for name in (row.variant, sweep.baseline)
  ]
  arms = fresh.arms() if sweep.tune is None else tuned_arms(fresh, read_tuning(folder))
  plan, configs = make_plan(
    fresh, measure, arms=[arm for arm in arms if (arm.variant, arm.plain_point) in cells]
  )
  return Stage('confirm', dataclasses.replace(plan, name=f'{plan.name}-confirm'), configs)


def _overview(sweep: Sweep, planned: TuningPlan) -> str:
  """Returns the number of trials of all stages. Those of the last stage include trials of the result."""
  cells = len(planned.cells)
  extra = len(sweep.seeds_of(sweep.baseline)) - len(sweep.seed_list)
  count = cells * len(sweep.seed_list) + extra * len([*sweep.points()])
  name = sweep.name
  most = 'at most ' if planned.tune.keep < 1 else ''
  return (
    f'stages: {name}-tune with {most}{planned.num_trials} trials (up to {planned.tune.max_trials} if the best value '
    f'of a variant is the smallest or largest), {name} with {count} at the tuned values, '
    f'{name}-untuned with {count} at the own values, of which equal ones run once'
  )
