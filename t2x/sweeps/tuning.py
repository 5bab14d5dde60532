"""Plans the tuning trials of a sweep (`Sweep.tune`), chooses the tuned values, and plans the trials at these values."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from t2x import config as config_lib
from t2x.base.errors import UserError
from t2x.base.suggestions import did_you_mean
from t2x.experiments import read_config
from t2x.sweeps.arms import Arm
from t2x.sweeps.budgets import first_parameter, parameters_of
from t2x.sweeps.plan import Inspect, StepSeconds, arm_problems, make_plan, read_base
from t2x.sweeps.records import Outcome, Plan, Trial, judge, usable_outcome
from t2x.sweeps.sweep import Sweep
from t2x.sweeps.tune import Choice, Tried, Tune, Tuning


@dataclasses.dataclass(frozen=True)
class Cell:
  """Tuning trials of a variant at a point of the grid.

  Attributes:
    own: value of the variant without tuning.
    trials: the trials by value and seed.
    accepts: whether a value of the parameter is valid.
  """

  variant: str
  point: Mapping[str, Any]
  parameter: str
  own: int | float
  trials: Mapping[int | float, Mapping[int, Trial]]
  accepts: Callable[[int | float], bool] = lambda value: True

  def schedule(
    self, tune: Tune, plan: Plan, outcome_of: Callable[[Trial], Outcome | None]
  ) -> tuple[list[Trial], Choice | None]:
    """Returns the trials of all rounds up to the first unfinished round, and the choice if all have ended."""
    remaining, scheduled = sorted(self.trials), list[Trial]()
    tried: dict[int | float, Tried] = {}
    for count, seed in zip(tune.sizes(len(remaining)), tune.seed_list, strict=False):
      remaining = self._best(remaining, tried, plan)[:count]
      scheduled += [self.trials[value][seed] for value in remaining]
      outcomes = {trial.folder: outcome_of(trial) for trial in scheduled if not trial.problem}
      if None in outcomes.values():
        return scheduled, None
      for value in self.trials:
        own = [trial for trial in scheduled if trial is self.trials[value].get(trial.seed)]
        tried[value] = _tried(value, plan, own, outcomes)
    best = self._best(remaining, tried, plan)[0]
    chosen = best if tried[best].n else self.own
    return scheduled, Choice(
      variant=self.variant,
      point=self.point,
      parameter=self.parameter,
      own=self.own,
      chosen=chosen,
      edge=self._edge(chosen),
      tried=tuple(tried[value] for value in sorted(tried)),
    )

  def _edge(self, chosen: int | float) -> Literal['', 'smallest', 'largest']:
    if chosen == min(self.trials) and self.accepts(_next(chosen, -math.inf)):
      return 'smallest'
    if chosen == max(self.trials) and self.accepts(_next(chosen, math.inf)):
      return 'largest'
    return ''

  def _best(
    self, values: Sequence[int | float], tried: Mapping[int | float, Tried], plan: Plan
  ) -> list[int | float]:
    """Sorts values: those with fewer diverged and failed seeds first, then by the mean, then the own value."""
    sign = 1 if plan.goal == 'min' else -1

    def rank(value: int | float) -> tuple[Any, ...]:
      result = tried.get(value)
      if result is None:
        return (0,)
      mean = math.inf if result.mean is None else sign * result.mean
      return result.diverged + result.failed, mean, value != self.own

    return sorted(values, key=rank)


def _next(value: int | float, direction: float) -> int | float:
  """Returns the next number in a direction."""
  if isinstance(value, int):
    return value + int(math.copysign(1, direction))
  return math.nextafter(value, direction)


def _tried(
  value: int | float,
  plan: Plan,
  trials: Sequence[Trial],
  outcomes: Mapping[str, Outcome | None],
) -> Tried:
  metrics: dict[str, float] = {}
  lost = {'diverged': 0, 'failed': 0}
  for trial in trials:
    outcome = outcomes.get(trial.folder)
    status = 'failed' if outcome is None else judge(plan, outcome)[0]
    if outcome is not None and status == 'finished':
      metrics[str(trial.seed)] = float(outcome.metrics[plan.metric])
    else:
      lost[status] += 1
  mean = statistics.fmean(metrics.values()) if metrics else None
  return Tried(value=value, mean=mean, n=len(metrics), metrics=metrics, **lost)


@dataclasses.dataclass(frozen=True)
class TuningPlan:
  """All trials that the tuning may need.

  Attributes:
    tune: the settings, with the budget of all extensions in `max_trials`.
    plan: the plan with all values and all tuning seeds.
    configs: configs of its trials by folder.
    cells: its trials by variant and point.
  """

  tune: Tune
  plan: Plan
  configs: Mapping[str, str]
  cells: tuple[Cell, ...]

  @property
  def num_trials(self) -> int:
    """Number of trials that the tuning needs; equal variants share theirs."""
    distinct = {
      tuple(trial.identity for v in sorted(cell.trials) for trial in cell.trials[v].values()): cell
      for cell in self.cells
    }
    return sum(sum(self.tune.sizes(len(cell.trials))) for cell in distinct.values())

  @property
  def inputs(self) -> set[str]:
    """Names of the hyperparameters that are inputs of the compiled programs."""
    return {name for trial in self.plan.trials for name in trial.numbers}

  def next(self, folder: Path) -> tuple[Plan, dict[str, str], Tuning | None]:
    """Returns the trials of all rounds up to the first unfinished round.

    Args:
      folder: OUT/trials.

    Returns:
      The plan of the trials, their configs, and the tuned values if all rounds have ended.
    """
    scheduled = [
      cell.schedule(self.tune, self.plan, lambda trial: usable_outcome(folder / trial.folder))
      for cell in self.cells
    ]
    trials = tuple(trial for of_cell, _ in scheduled for trial in of_cell)
    choices = tuple(choice for _, choice in scheduled if choice is not None)
    configs = {trial.folder: self.configs[trial.folder] for trial in trials if not trial.problem}
    tuning = Tuning(
      metric=self.plan.metric,
      goal=self.plan.goal,
      seeds=self.tune.seed_list,
      keep=self.tune.keep,
      trials=len({trial.folder for trial in trials}),
      choices=choices,
    )
    plan = dataclasses.replace(self.plan, trials=trials)
    return plan, configs, tuning if len(choices) == len(scheduled) else None

  def notes(self) -> Iterator[str]:
    """Yields one line for each tuned parameter whose values do not share a compiled program."""
    programs: dict[str, list[set[str]]] = {}
    for cell in self.cells:
      trials = (trial for of_seed in cell.trials.values() for trial in of_seed.values())
      programs.setdefault(cell.parameter, []).append({trial.program for trial in trials})
    for name, of_cells in programs.items():
      if max(map(len, of_cells)) > 1:
        yield (
          f'{name} is not an input of the compiled program: its values compile '
          f'{len(set.union(*of_cells))} programs'
        )


def plan_tuning(
  sweep: Sweep, measure: StepSeconds | None = None, inspect: Inspect | None = None
) -> TuningPlan:
  """Plans the tuning trials of a sweep.

  Args:
    sweep: a sweep with `tune`.
    measure: as for `make_plan`.
    inspect: as for `make_plan`.

  Raises:
    UserError: a variant does not have the parameter, a value is invalid, or the budget is too small.
  """
  tune, base = _tune(sweep), read_base(sweep)
  tuned = [*_tuned(sweep, tune, base)]
  arms = [
    arm.at(name, value)
    for arm, name, own in tuned
    # The first arm of the baseline has the budget that all are matched to.
    for value in sorted(tune.grid(own), key=lambda value: (value != own, value))
  ]
  seeds = dataclasses.replace(
    sweep,
    metric=tune.metric or sweep.metric,
    seeds=tune.seed_list,
    baseline_seeds=None,
    max_seeds=None,
    tune=None,
  )
  plan, configs = make_plan(seeds, measure, inspect, arms=arms)
  plan = dataclasses.replace(plan, name=f'{plan.name}-tune', tuning='trials')
  cells = []
  for arm, name, own in tuned:
    point, trials = arm.plain_point, dict[Any, dict[int, Trial]]()
    for trial in plan.trials:
      if (trial.variant, trial.point) == (arm.variant, point):
        trials.setdefault(trial.tuned[name], {})[trial.seed] = trial
    accepts = functools.partial(_accepts, arm, name, base)
    cells.append(Cell(arm.variant, point, name, own, trials, accepts))
  result = TuningPlan(tune, plan, configs, tuple(cells))
  budget = tune.max_trials or 2 * result.num_trials
  if result.num_trials > budget:
    raise UserError(
      f'{sweep.file}: Tune.max_trials = {tune.max_trials}, but the tuning needs {result.num_trials} trials: '
      'reduce the values, Tune.seeds or Tune.keep, or increase it'
    )
  return dataclasses.replace(result, tune=dataclasses.replace(tune, max_trials=budget))


def extended(
  sweep: Sweep, planned: TuningPlan, tuning: Tuning, measure: StepSeconds | None = None
) -> TuningPlan | None:
  """Extends the grids of all variants at the ends at which tuned values are.

  Args:
    sweep: the sweep.
    planned: a tuning whose trials have ended.
    tuning: its tuned values.
    measure: as for `make_plan`.

  Returns:
    The tuning with one more value at these ends; None if no tuned value is at an edge, the budget does not suffice,
    or a variant refuses the value.
  """
  ends = {choice.edge for choice in tuning.choices} - {''}
  for some in (ends, ends & {'smallest'}, ends & {'largest'}):
    if some:
      try:
        return plan_tuning(dataclasses.replace(sweep, tune=planned.tune.extended(some)), measure)
      except UserError:
        continue
  return None


def tuned_arms(sweep: Sweep, tuning: Tuning) -> Iterator[Arm]:
  """Yields the variants of a sweep at their tuned values.

  Raises:
    UserError: a variant was not tuned.
  """
  for arm in sweep.arms():
    choice = tuning.of(arm.variant, arm.plain_point)
    if choice is None:
      raise UserError(f"variant '{arm.title}' was not tuned: run `t2x sweep {sweep.file}` first")
    yield arm.at(choice.parameter, choice.chosen)


def _tune(sweep: Sweep) -> Tune:
  if sweep.tune is None:
    raise ValueError('the sweep has no Sweep.tune')
  return sweep.tune


def _accepts(arm: Arm, name: str, base: config_lib.Config, value: int | float) -> bool:
  at = arm.at(name, value)
  try:
    read_config(at.files, at.bindings, base=base, overriding=at.own_files)
  except UserError:
    return False
  return True


def _tuned(
  sweep: Sweep, tune: Tune, base: config_lib.Config
) -> Iterator[tuple[Arm, str, int | float]]:
  """Yields every arm with its tuned parameter and its own value.

  Raises:
    UserError: one line for each variant without such a parameter.
  """
  problems = []
  for arm in sweep.arms():
    try:
      config = read_config(arm.files, arm.bindings, base=base, overriding=arm.own_files)
      yield arm, *_own_value(config, tune)
    except UserError as error:
      problems += arm_problems(sweep, arm, error)
  if problems:
    raise UserError('\n'.join(problems))


def _own_value(config: config_lib.Config, tune: Tune) -> tuple[str, int | float]:
  first = first_parameter(config, tune.names)
  if first is None:
    hint = did_you_mean(tune.names[0], parameters_of(config, [int, float]))
    raise UserError(f'it has no parameter {" or ".join(tune.names)} to tune{hint}')
  name, value = first
  if not isinstance(value, int | float) or isinstance(value, bool):
    raise UserError(f'{name} = {config_lib.to_gin(value)} must be a number to be tuned')
  if tune.factors and not value:
    raise UserError(f'{name} = 0 has no multiples to try: set Tune.values')
  return name, value
