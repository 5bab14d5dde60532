"""Plans tuning trials (`Sweep.tune`), chooses a value per tuning seed, and yields the arms at these values."""

import dataclasses
import functools
import itertools
import math
import operator
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

  def choice(self, plan: Plan, outcome_of: Callable[[Trial], Outcome | None]) -> Choice | None:
    """Returns the choice; None before the end of all trials."""
    trials = [trial for of_value in self.trials.values() for trial in of_value.values()]
    outcomes = {trial.folder: outcome_of(trial) for trial in trials if not trial.problem}
    if None in outcomes.values():
      return None
    tried = {
      value: _tried(value, plan, [*of_value.values()], outcomes)
      for value, of_value in self.trials.items()
    }
    best = self._best(tried, plan)
    chosen = best if tried[best].n else self.own
    return Choice(
      variant=self.variant,
      point=self.point,
      parameter=self.parameter,
      own=self.own,
      chosen=chosen,
      edge=self._edge(chosen),
      tried=tuple(tried[value] for value in sorted(tried)),
      values={
        str(seed): self._best_with(str(seed), tried, plan)
        for seed in dict.fromkeys(trial.seed for trial in trials)
      },
    )

  def _edge(self, chosen: int | float) -> Literal['', 'smallest', 'largest']:
    if chosen == min(self.trials) and self.accepts(_next(chosen, -math.inf)):
      return 'smallest'
    if chosen == max(self.trials) and self.accepts(_next(chosen, math.inf)):
      return 'largest'
    return ''

  def _best(self, tried: Mapping[int | float, Tried], plan: Plan) -> int | float:
    """Returns the best value over all seeds: fewest diverged and failed seeds, then best mean, then the own value."""

    def rank(value: int | float) -> tuple[Any, ...]:
      result = tried[value]
      mean = math.inf if result.mean is None else _sign(plan) * result.mean
      return result.diverged + result.failed, mean, value != self.own, value

    return min(tried, key=rank)

  def _best_with(self, seed: str, tried: Mapping[int | float, Tried], plan: Plan) -> int | float:
    """Returns the best value for one tuning seed, independent of all others; the own value if no trial finished."""
    finished = [value for value, result in tried.items() if seed in result.metrics]
    return min(
      finished,
      key=lambda value: (_sign(plan) * tried[value].metrics[seed], value != self.own, value),
      default=self.own,
    )


def _sign(plan: Plan) -> int:
  return 1 if plan.goal == 'min' else -1


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
    configs: configs of the trials by folder.
    cells: trials by variant and point.
  """

  tune: Tune
  plan: Plan
  configs: Mapping[str, str]
  cells: tuple[Cell, ...]

  @property
  def num_trials(self) -> int:
    """Number of trials that the tuning needs; equal variants share trials."""
    distinct = {
      tuple(trial.identity for v in sorted(cell.trials) for trial in cell.trials[v].values()): cell
      for cell in self.cells
    }
    return sum(len(of_value) for cell in distinct.values() for of_value in cell.trials.values())

  @property
  def inputs(self) -> set[str]:
    """Names of the hyperparameters that are inputs of the compiled programs."""
    return {name for trial in self.plan.trials for name in trial.numbers}

  def result(self, folder: Path) -> Tuning | None:
    """Returns the tuned values; None before the end of all trials.

    Args:
      folder: OUT/trials.
    """
    choices = [
      cell.choice(self.plan, lambda trial: usable_outcome(folder / trial.folder))
      for cell in self.cells
    ]
    if None in choices:
      return None
    return Tuning(
      metric=self.plan.metric,
      goal=self.plan.goal,
      seeds=tuple(sorted({trial.seed for trial in self.plan.trials})),
      trials=len({trial.folder for trial in self.plan.trials}),
      choices=tuple(filter(None, choices)),
    )

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
    # All arms are matched to the budget of the first arm of the baseline.
    for value in sorted(tune.grid(own), key=lambda value: (value != own, value))
  ]
  of_variants, of_baseline = map(sweep.tuning_seeds_of, ('', sweep.baseline))
  seeds = dataclasses.replace(
    sweep,
    metric=tune.metric or sweep.metric,
    seeds=of_variants,
    baseline_seeds=len(of_baseline) if len(of_baseline) > len(of_variants) else None,
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
      'reduce the values or Tune.seeds, or increase it'
    )
  return dataclasses.replace(result, tune=dataclasses.replace(tune, max_trials=budget))


def extended(
  sweep: Sweep, planned: TuningPlan, tuning: Tuning, measure: StepSeconds | None = None
) -> TuningPlan | None:
  """Extends the grids of all variants at each end that is a tuned value.

  Args:
    sweep: the sweep.
    planned: a tuning with finished trials.
    tuning: the tuned values.
    measure: as for `make_plan`.

  Returns:
    The tuning with one more value at these ends; None if no tuned value is at an end, the budget does not suffice,
    or a variant refuses the value.
  """
  ends = {choice.edge for choice in tuning.choices} - {''}
  for selected in (ends, ends & {'smallest'}, ends & {'largest'}):
    if selected:
      try:
        return plan_tuning(
          dataclasses.replace(sweep, tune=planned.tune.extended(selected)), measure
        )
      except UserError:
        continue
  return None


def tuned_arms(sweep: Sweep, tuning: Tuning) -> Iterator[Arm]:
  """Yields the variants of a sweep at their tuned values, each with its seeds in order.

  Raises:
    UserError: a variant was not tuned.
  """
  for arm in sweep.arms():
    choice = tuning.of(arm.variant, arm.plain_point)
    if choice is None:
      raise UserError(f"variant '{arm.title}' was not tuned: run `t2x sweep {sweep.file}` first")
    tuning_seeds = itertools.cycle(sweep.tuning_seeds_of(arm.variant))
    chosen = [
      (choice.values[str(by)], seed, by)
      for seed, by in zip(sweep.seeds_of(arm.variant), tuning_seeds, strict=False)
    ]
    for value, members in itertools.groupby(chosen, operator.itemgetter(0)):
      yield dataclasses.replace(
        arm.at(choice.parameter, value), seeds={seed: by for _, seed, by in members}
      )


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
    UserError: one line per variant without the parameter.
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
