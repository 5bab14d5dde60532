"""Stages of a sweep, each with a plan and a folder of its own.

OUT/NAME-tune           the tuning trials (`Sweep.tune`), in several rounds if the grid is extended
OUT/NAME                the result; every variant at its tuned values
OUT/NAME-untuned        every variant at its own value with the same seeds, for a comparison with the result; not with
                        `Tune.untuned = False`
OUT/NAME-confirm-tune   the tuning trials of the variants that help or hurt, with fresh tuning seeds (`--confirm`)
OUT/NAME-confirm        these variants with fresh seeds
"""

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Literal

from t2x.base.errors import UserError
from t2x.base.text_table import terminal_width, text_table
from t2x.statistics.two_way import FEWEST
from t2x.sweeps.plan import StepSeconds, make_plan
from t2x.sweeps.plan_table import tuning_table
from t2x.sweeps.records import Plan
from t2x.sweeps.sweep import Sweep
from t2x.sweeps.tune import FEWEST_SEEDS, Tune, Tuning, read_tuning
from t2x.sweeps.tuning import TuningPlan, extended, plan_tuning, tuned_arms

StageName = Literal['', 'tune', 'untuned', 'confirm', 'confirm-tune']


@dataclasses.dataclass(frozen=True)
class Stage:
  """A stage to run.

  Attributes:
    name: suffix of its folder; '' for the result.
    configs: configs of its trials by folder.
    notes: lines to print before the plan.
    tuning: the tuned values, if the stage is the first one that uses them.
    later: number of trials of the stages that follow, as far as it is known; equal ones are counted twice.
  """

  name: StageName
  plan: Plan
  configs: Mapping[str, str]
  notes: tuple[str, ...] = ()
  tuning: Tuning | None = None
  later: int = 0

  @property
  def is_last(self) -> bool:
    """Whether no other stage follows."""
    return not self.later


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
  inputs = yield from _tuned_stages(sweep, out, measure)
  if not sweep.tune.untuned:
    return
  plan, configs = make_plan(sweep, measure, inputs=inputs)
  plan = dataclasses.replace(plan, name=f'{plan.name}-untuned', tuning='untuned')
  yield Stage('untuned', plan, configs)


def _tuned_stages(
  sweep: Sweep, out: Path, measure: StepSeconds | None, *, confirms: bool = False
) -> Generator[Stage, None, set[str]]:
  """Yields the tuning and the result; returns the hyperparameters that are inputs of the programs."""
  trials, planned = out / 'trials', plan_tuning(sweep, measure)
  name = folder_of(out, sweep.name, 'confirm' if confirms else '').name
  notes = (_overview(sweep, planned, name, confirms), *planned.notes())
  count = sum(len(sweep.seeds_of(arm.variant)) for arm in sweep.arms())
  untuned = count if planned.tune.untuned and not confirms else 0
  tune: StageName = 'confirm-tune' if confirms else 'tune'
  while True:
    plan = dataclasses.replace(planned.plan, name=f'{name}-tune')
    yield Stage(tune, plan, planned.configs, notes, later=count + untuned)
    tuning = planned.result(trials)
    if tuning is None:
      continue
    if any(choice.lost for choice in tuning.choices if choice.variant == sweep.baseline):
      raise UserError(
        f"no tuning trial of the baseline '{sweep.baseline}' finished, so that nothing can be "
        'compared: see the logs in '
        f'{trials}, correct the cause, and run the same command with --retry',
        1,
      )
    larger = extended(sweep, planned, tuning, measure)
    if larger is None:
      break
    notes = (notes[0], _extension(planned.tune, larger.tune), *larger.notes())
    planned = larger
  plan, configs = make_plan(sweep, measure, arms=tuned_arms(sweep, tuning), inputs=planned.inputs)
  plan = dataclasses.replace(plan, name=name, tuning='tuned')
  notes = (notes[0], tuning_table(tuning))
  yield Stage('confirm' if confirms else '', plan, configs, notes, tuning, untuned)
  return planned.inputs


def confirm_stages(
  sweep: Sweep, out: Path, measure: StepSeconds | None, num_seeds: int | None
) -> Iterator[Stage]:
  """Yields the stages that repeat the variants that help or hurt with fresh seeds, tuned again with fresh tuning seeds.

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
  tune = sweep.tune
  fresh = dataclasses.replace(
    sweep,
    only=tuple(dict.fromkeys(row.variant for row in rows)),
    seeds=tuple(range(first, first + count)),
    max_seeds=None,
    baseline_seeds=sweep.baseline_seeds if unbalanced else None,
    # Fewer tuning seeds than seeds remain fewer.
    tune=tune and dataclasses.replace(tune, seeds=_fewer(tune.seeds, count)),
    first_tuning_seed=1 + max(read_tuning(folder).seeds) if tune else sweep.first_tuning_seed,
    cells=[
      (name, results.points[row.point]) for row in rows for name in (row.variant, sweep.baseline)
    ],
  )
  if tune is not None:
    yield from _tuned_stages(fresh, out, measure, confirms=True)
    return
  plan, configs = make_plan(fresh, measure)
  yield Stage('confirm', dataclasses.replace(plan, name=f'{plan.name}-confirm'), configs)


def _fewer(seeds: int | None, count: int) -> int | None:
  return seeds if seeds is not None and seeds < count else None


def _overview(sweep: Sweep, planned: TuningPlan, name: str, confirms: bool) -> str:
  """Returns the numbers of trials of the stages. Those of the last stage include trials of the result."""
  count = str(sum(len(sweep.seeds_of(arm.variant)) for arm in sweep.arms()))
  seeds = len(sweep.tuning_seeds_of(''))
  note = f'{seeds} tuning seeds; up to {planned.tune.max_trials} if a best value is the smallest or largest'
  rows = [
    ('stage', 'folder', 'trials', ''),
    ('tuning', f'{name}-tune', str(planned.num_trials), note),
    ('comparison', name, count, 'at the tuned values'),
  ]
  if planned.tune.untuned and not confirms:
    note = 'at the own values, of which equal ones run once; Tune.untuned = False leaves them out'
    rows.append(('untuned', f'{name}-untuned', count, note))
  lines = [text_table(rows, '<<><', terminal_width())]
  if seeds < FEWEST_SEEDS:
    lines.append(f'no verdicts: they need {FEWEST_SEEDS} tuning seeds; increase Tune.seeds')
  return '\n'.join(lines)


def _extension(before: Tune, after: Tune) -> str:
  """Describes the values with which a tuning was extended."""
  values = sorted({*after.values, *after.factors} - {*before.values, *before.factors})
  what = ' and '.join(f'{value:g}' for value in values)
  times = ' times the own value' if after.factors else ''
  return (
    f'a best value is at an edge: all variants also try {" or ".join(after.names)} = {what}{times}'
  )
