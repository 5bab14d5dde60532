"""From a sweep file to trials: resolved, matched in budget, each with an identity."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from t2x import config as config_lib
from t2x.api import read_config
from t2x.errors import UserError, in_a_line
from t2x.sweeps.budgets import integers, is_known, knob_of, solve
from t2x.sweeps.cost import Cost, cost_of
from t2x.sweeps.provenance import commit, versions
from t2x.sweeps.records import Plan, Trial
from t2x.sweeps.sweep import Arm, Sweep, plain, shown
from t2x.train import Experiment

# Seconds of a training step, given a config and its identity.
StepSeconds = Callable[[config_lib.Config, str], float]

T = TypeVar('T')

SEED = 'Trainer.seed'
# Called with the names of the hyperparameters that an experiment holds references to, and with it.
Inspect = Callable[[Collection[str], Experiment], object]
# A program, and the hyperparameters of a config that could be its inputs.
_Numbers = tuple[str, dict[str, float]]


def make_plan(
  sweep: Sweep,
  step_seconds: StepSeconds | None = None,
  inspect: Inspect | None = None,
) -> tuple[Plan, dict[str, str]]:
  """Resolves every trial; allocates nothing.

  Args:
    sweep: what was read.
    step_seconds: measures a step, for a match in seconds.
    inspect: called with an experiment of each program, in which the hyperparameters that its trials
      vary are references; raises where something is wrong with it.

  Returns:
    The plan, and the resolved config of each run folder that is to be run, by its name.

  Raises:
    UserError: configs that do not resolve or fit, a line each, led by the variant's name. (A budget
      that cannot be matched is no such error: it is noted in the trial.)
  """
  planner = _Planner(sweep, step_seconds)
  planned: dict[str, tuple[Arm, config_lib.Config]] = {}
  trials: list[Trial] = []
  configs: dict[str, str] = {}
  problems: list[str] = []
  for arm in sweep.arms():
    try:
      resolved = planner.planned(arm)
    except UserError as error:
      problems += _problems(sweep, arm, error)
      continue
    planned.setdefault(resolved.identity, (arm, resolved.config))
    unused = planner.unused(resolved.config)
    for seed in sweep.seed_list:
      folder = f'{resolved.identity}-{seed}'
      trials.append(resolved.trial(arm, seed, folder, unused))
      if not resolved.problem:
        config = planner.load(arm, (*resolved.knob, f'{SEED}={seed}'))
        configs[folder] = config_lib.render(config)
  trials = [*_sharing(trials, planner.numbers)]
  if inspect is not None:
    problems += _inspected(sweep, planned, trials, inspect)
  if problems := problems or [*planner.knob_problems()]:
    raise UserError('\n'.join(problems))
  plan = Plan(
    name=sweep.name,
    baseline=sweep.baseline,
    metric=sweep.metric,
    goal=planner.goal or 'min',
    matched=sweep.match or '',
    config=config_lib.render(planner.base),
    versions=versions(),
    commit=commit(),
    trials=tuple(trials),
    file=str(sweep.file.resolve()),
  )
  return plan, configs


def identity_of(files: Sequence[Path]) -> str:
  """The identity of a trial, given its gin files: that of its config without the seed."""
  return config_lib.identity(read_config(files, [f'{SEED}=0']), without=[SEED])


def _goal(sweep: Sweep, config: config_lib.Config) -> Literal['min', 'max']:
  """Which way the metric is better, as the task knows."""
  task = config.build().task
  if sweep.metric == task.best_metric:
    return task.best_mode
  if sweep.metric.rpartition('/')[2] == 'loss':
    return 'min'
  raise UserError(f"Sweep.goal is missing: is '{sweep.metric}' better at its 'min' or its 'max'?")


def _bound(config: config_lib.Config) -> list[str]:
  """What a config binds and uses, macros left out."""
  return [one.target for one in config.bindings_used if not one.is_macro]


def _problems(sweep: Sweep, arm: Arm, error: UserError) -> list[str]:
  """The lines of an error, each with the name of the variant."""
  lines = str(error).replace(f'{config_lib.COMMAND_LINE}: ', '').splitlines()
  return [f"{sweep.file}: variant '{arm.title}': {line}" for line in lines]


def _inspected(
  sweep: Sweep,
  planned: Mapping[str, tuple[Arm, config_lib.Config]],
  trials: Sequence[Trial],
  inspect: Inspect,
) -> Iterator[str]:
  """Calls `inspect` once per program; yields what is wrong with it, a line each."""
  programs: dict[str, Trial] = {}
  for trial in trials:
    programs.setdefault(trial.program, trial)
  for trial in programs.values():
    arm, config = planned[trial.identity]
    try:
      _of_experiment(functools.partial(inspect, trial.numbers), config, trial.numbers)
    except UserError as error:
      yield from _problems(sweep, arm, error)


def _of_experiment(
  function: Callable[[Experiment], T],
  config: config_lib.Config,
  hyperparameters: Collection[str] = (),
) -> T:
  """The function's result; raises UserError whatever keeps the experiment from being built."""
  try:
    return function(config.build(hyperparameters))
  except UserError:
    raise
  except Exception as error:
    # Parts check what they can name; sizes such as 0 and -1 fail wherever they are first used.
    raise UserError(f'it cannot be built: {in_a_line(error)}') from error


def _check_effect(sweep: Sweep, arm: Arm, config: config_lib.Config) -> None:
  """Refuses bindings of a variant or a point over which another binding wins everywhere.

  The base gives way to them, but not what the sweep file binds for all trials.
  """
  used = {*config.bindings_used}
  # The last binding is the seed's.
  own = config.statements[-1 - len(arm.own_bindings) : -1]
  problems = []
  for one in (*own, *(s for s in config.statements if s.place.file in arm.own_files)):
    if one in used:
      continue
    winners = (s for s in config.bindings_used if (s.name, s.param) == (one.name, one.param))
    by = ', '.join(_placed(s, f'{sweep.file} or --gin') for s in winners)
    problems.append(f'{_placed(one)} has no effect' + (f': {by} wins over it' if by else ''))
  if problems:
    raise UserError('\n'.join(problems))


def _placed(statement: config_lib.Statement, overrides: str = '') -> str:
  """The binding, and where it is; `overrides`: what to call the place of those that are in no file."""
  place = overrides if statement.place == config_lib.COMMAND_LINE else str(statement.place)
  text = f'{statement.target} = {config_lib.to_gin(statement.value)}'
  return f'{text} ({place})' if place else text


def _sharing(trials: Sequence[Trial], numbers: Mapping[str, _Numbers]) -> Iterator[Trial]:
  """The trials, those that differ only in hyperparameters with one program and with their values."""
  groups: dict[str, dict[str, dict[str, float]]] = {}
  for trial in trials:
    program, values = numbers[trial.identity]
    groups.setdefault(program, {})[trial.identity] = values
  for trial in trials:
    program, values = numbers[trial.identity]
    others = groups[program].values()
    differ = {k: v for k, v in values.items() if any(one[k] != v for one in others)}
    yield dataclasses.replace(trial, program=program if differ else trial.identity, numbers=differ)


@dataclasses.dataclass(frozen=True)
class _Resolved:
  """An arm's config, what it costs, and the knob that was moved."""

  config: config_lib.Config
  identity: str
  cost: Cost
  knob: tuple[str, ...] = ()
  gap: float = 0.0
  problem: str = ''

  def trial(self, arm: Arm, seed: int, folder: str, unused: tuple[str, ...]) -> Trial:
    return Trial(
      variant=arm.variant,
      point={name: plain(value) for name, value in arm.point.items()},
      seed=seed,
      identity=self.identity,
      folder=folder,
      changes=self._changes(arm),
      unused=unused,
      parameters=self.cost.parameters,
      flops_per_token=self.cost.flops_per_token,
      tokens_per_step=self.cost.tokens_per_step,
      num_steps=self.cost.num_steps,
      knob=''.join(map(shown, self.knob)),
      gap=self.gap,
      problem=self.problem,
    )

  def _changes(self, arm: Arm) -> tuple[str, ...]:
    """What sets the arm apart, the knob's own binding replaced where it moved."""
    moved = [*map(shown, self.knob)]
    names = [line.partition(' = ')[0] for line in moved]
    return (*(one for one in arm.changes if one.partition(' = ')[0] not in names), *moved)


class _Planner:
  """Resolves arms, each config and each shape once."""

  def __init__(self, sweep: Sweep, step_seconds: StepSeconds | None):
    self.sweep, self.step_seconds = sweep, step_seconds
    # Complete in itself, so that a variant may leave its parts unused.
    try:
      self.base = read_config(sweep.base_files, sweep.shared)
    except UserError as error:
      # To the loader the sweep file's own bindings are overrides.
      told = str(error).replace(f'{config_lib.COMMAND_LINE}:', f'{sweep.file} or --gin:')
      raise UserError(told) from error
    self._base_bound = _bound(self.base)
    # Those whose names no config has known yet.
    self._unknown_knobs = set(sweep.knobs)
    self._costs: dict[str, Cost] = {}
    self.numbers: dict[str, _Numbers] = {}
    self.goal = sweep.goal
    # None: no baseline could be resolved.
    self._target: float | None = None

  def load(self, arm: Arm, more: Sequence[str] = ()) -> config_lib.Config:
    return read_config(arm.files, (*arm.bindings, *more), base=self.base)

  def resolve(self, arm: Arm, knob: tuple[str, ...] = ()) -> _Resolved:
    config = self.load(arm, (*knob, f'{SEED}=0'))
    if not knob:
      _check_effect(self.sweep, arm, config)
    identity = config_lib.identity(config, without=[SEED])
    if identity not in self._costs:
      self._costs[identity] = _of_experiment(cost_of, config)
      numbers = config_lib.hyperparameters(config)
      same = config_lib.identity(config, without=[SEED, *numbers])
      # `same` holds those that are zero, the names tell which ones are not.
      digest = hashlib.sha256(repr((same, sorted(numbers))).encode()).hexdigest()
      self.numbers[identity] = digest[:12], numbers
    self._unknown_knobs -= {one for one in self._unknown_knobs if is_known(config, one)}
    return _Resolved(config, identity, self._costs[identity], knob)

  def unused(self, config: config_lib.Config) -> tuple[str, ...]:
    """What the base binds and uses, and this config does not use."""
    used = set(_bound(config))
    return tuple(one for one in self._base_bound if one not in used)

  def planned(self, arm: Arm) -> _Resolved:
    """The arm with the budget of the baseline, which is planned before it at each point."""
    resolved = self.resolve(arm)
    if arm.variant != self.sweep.baseline:
      return resolved if self._target is None else self._matched(arm, resolved, self._target)
    self.goal = self.goal or _goal(self.sweep, resolved.config)
    self._target = None if self.sweep.match is None else self._quantity(resolved)
    return resolved

  def knob_problems(self) -> Iterator[str]:
    """A line for each knob that is nothing."""
    for knob in sorted(self._unknown_knobs):
      hint = config_lib.did_you_mean(knob, integers(self.base))
      yield f"{self.sweep.file}: Sweep.knob: there is no '{knob}'{hint}"

  def _quantity(self, resolved: _Resolved) -> float:
    if self.sweep.match != 'seconds':
      return resolved.cost.of(str(self.sweep.match))
    if self.step_seconds is None:
      raise UserError("Sweep.match = 'seconds' needs a machine to measure on")
    return self.step_seconds(resolved.config, resolved.identity) * resolved.cost.num_steps

  def _matched(self, arm: Arm, resolved: _Resolved, target: float) -> _Resolved:
    """The arm with its knob where the budget is the target, or with the reason why not."""
    sweep = self.sweep
    gap = self._quantity(resolved) / target - 1
    if abs(gap) <= sweep.tolerance:
      return dataclasses.replace(resolved, gap=gap)
    wanted = f'{abs(gap):.1%} {"more" if gap > 0 else "fewer"} {sweep.match} than the baseline'
    if sweep.match == 'steps':
      return dataclasses.replace(resolved, gap=gap, problem=f'{wanted}: Sweep.match is steps')
    try:
      knob, start = knob_of(resolved.config, sweep.knobs)
      found = solve(
        lambda value: self._quantity(self.resolve(arm, (f'{knob}={value}',))),
        start,
        target,
        sweep.tolerance,
      )
    except UserError as error:
      return dataclasses.replace(resolved, gap=gap, problem=f'{wanted}, and {error}')
    moved = self.resolve(arm, (f'{knob}={found.value}',))
    problem = ''
    if abs(found.gap) > sweep.tolerance:
      problem = f'{wanted}; the nearest, {knob} = {found.value}, is {found.gap:+.1%} off'
    return dataclasses.replace(moved, gap=found.gap, problem=problem)
