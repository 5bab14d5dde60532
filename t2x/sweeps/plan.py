"""Plans a sweep: resolves its trials, matches their budgets and assigns their identities."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

from t2x import config as config_lib
from t2x.base.errors import UserError, error_line
from t2x.base.packages import require
from t2x.base.ranges import TRIAL_SEED
from t2x.base.suggestions import did_you_mean
from t2x.experiments import data_of, read_config
from t2x.sweeps.arms import Arm, shown
from t2x.sweeps.budgets import adjusted_parameter, is_bindable, parameters_of, solve
from t2x.sweeps.cost import Cost, cost_of
from t2x.sweeps.evaluated import evaluated
from t2x.sweeps.identities import Identities, Identity
from t2x.sweeps.provenance import commit, versions
from t2x.sweeps.records import Plan, Trial
from t2x.sweeps.sweep import Sweep
from t2x.train import Experiment

# Returns the seconds per training step of a config, given its identity as well.
StepSeconds = Callable[[config_lib.Config, str], float]

T = TypeVar('T')

# Called with the names of the hyperparameters that are references in an experiment, and the experiment.
Inspect = Callable[[Collection[str], Experiment], object]
# A program, and the hyperparameters of a config that may become inputs of it.
_Numbers = tuple[str, dict[str, float]]


def make_plan(
  sweep: Sweep,
  step_seconds: StepSeconds | None = None,
  inspect: Inspect | None = None,
  *,
  arms: Iterable[Arm] | None = None,
  inputs: Collection[str] = (),
) -> tuple[Plan, dict[str, str]]:
  """Resolves every trial of a sweep without allocating parameters.

  Args:
    sweep: the sweep.
    step_seconds: measures the time of a step, to match seconds.
    inspect: called with one experiment of each program, in which the hyperparameters that vary between
      its trials are references. It raises UserError if the experiment is invalid.
    arms: what to train instead of `sweep.arms()`, in this order; the first arm of the baseline at each point sets
      the budget.
    inputs: names of hyperparameters that are inputs of the compiled programs even if they are equal in all
      trials, so that other plans have the same programs.

  Returns:
    The plan, and the resolved configs of all trials that can run, by the name of the run folder.

  Raises:
    UserError: a config cannot be resolved or built, with one line per error that names the variant. A
      budget that cannot be matched is recorded in the trial instead.
  """
  planner = _Planner(sweep, step_seconds)
  planned: dict[str, tuple[Arm, config_lib.Config]] = {}
  trials: list[Trial] = []
  configs: dict[str, str] = {}
  problems: list[str] = []
  for arm in sweep.arms() if arms is None else arms:
    try:
      resolved = planner.plan(arm)
    except UserError as error:
      problems += arm_problems(sweep, arm, error)
      continue
    for trial, config in planner.trials(arm, resolved):
      planned.setdefault(trial.identity, (arm, resolved.config))
      trials.append(trial)
      if config is not None:
        configs[trial.folder] = config
  require(planner.packages)
  trials = [*_set_programs(trials, planner.numbers, inputs)]
  if inspect is not None:
    problems += _inspect_programs(sweep, planned, trials, inspect)
  if problems := problems or [*planner.adjusted_problems()]:
    raise UserError('\n'.join(problems))
  return planner.summary(trials), configs


def read_base(sweep: Sweep) -> config_lib.Config:
  """Reads the base with the bindings for all trials, on its own, so that a variant may leave them unused."""
  try:
    return read_config(sweep.base_files, sweep.shared)
  except UserError as error:
    # The loader reports bindings of the sweep file as those of the command line.
    message = str(error).replace(f'{config_lib.COMMAND_LINE}:', f'{sweep.file} or --gin:')
    raise UserError(message) from error


def seed_of(config: config_lib.Config) -> str:
  """Returns the name of the parameter in which the trials of a variant differ ('Trainer.seed').

  Raises:
    UserError: the config does not have exactly one such parameter.
  """
  names = config_lib.parameters_with(config, TRIAL_SEED)
  if len(names) != 1:
    found = f'several: {", ".join(names)}' if names else 'none: set Experiment.trainer'
    raise UserError(f'the trials of a sweep differ in one seed, but the experiment has {found}')
  return names[0]


def _goal(sweep: Sweep, config: config_lib.Config) -> Literal['min', 'max']:
  """Returns whether a lower or a higher metric is better, from the task."""
  task = config.build().task
  if sweep.metric == task.best_metric:
    return task.best_mode
  if sweep.metric.rpartition('/')[2] == 'loss':
    return 'min'
  raise UserError(f"Sweep.goal is missing: set it to 'min' or 'max' for '{sweep.metric}'")


def _used_targets(config: config_lib.Config) -> list[str]:
  """Returns the targets of the bindings that a config uses, without macros."""
  return [s.target for s in config.bindings_used if not s.is_macro]


def arm_problems(sweep: Sweep, arm: Arm, error: UserError) -> list[str]:
  """Prefixes each line of an error with the name of the variant."""
  lines = str(error).replace(f'{config_lib.COMMAND_LINE}: ', '').splitlines()
  return [f"{sweep.file}: variant '{arm.title}': {line}" for line in lines]


def _inspect_programs(
  sweep: Sweep,
  planned: Mapping[str, tuple[Arm, config_lib.Config]],
  trials: Sequence[Trial],
  inspect: Inspect,
) -> Iterator[str]:
  """Calls `inspect` once per program and yields the lines of its errors."""
  programs: dict[str, Trial] = {}
  for trial in trials:
    programs.setdefault(trial.program, trial)
  for trial in programs.values():
    arm, config = planned[trial.identity]
    try:
      _call_with_experiment(functools.partial(inspect, trial.numbers), config, trial.numbers)
    except UserError as error:
      yield from arm_problems(sweep, arm, error)


def _call_with_experiment(
  function: Callable[[Experiment], T],
  config: config_lib.Config,
  hyperparameters: Collection[str] = (),
) -> T:
  """Builds the experiment and calls the function with it; raises UserError for any exception."""
  try:
    return function(config.build(hyperparameters))
  except UserError:
    raise
  except Exception as error:
    # Invalid sizes such as 0 and -1 may raise any exception where they are first used.
    raise UserError(f'it cannot be built: {error_line(error)}') from error


def _check_effect(sweep: Sweep, arm: Arm, config: config_lib.Config) -> None:
  """Refuses bindings of a variant or grid point that are overridden, also for some of the parts only.

  They override the base, but not the bindings of the sweep file for all trials. A tuned value overrides that of a
  gin file of the variant.
  """
  used = {*config.bindings_used}
  # The last binding sets the seed.
  own = [*config.statements[-1 - len(arm.own_bindings) : -1]]
  for statement in config.statements:
    if statement.place.file in arm.own_files and statement.target not in arm.tuned:
      own.append(statement)
  problems = []
  for statement in own:
    winners = [
      s for s in used if (s.name, s.param) == (statement.name, statement.param) and s not in own
    ]
    if statement in used:
      # The value of a scope that the sweep file sets for all trials.
      winners = [
        s for s in winners if s.place == config_lib.COMMAND_LINE and _is_within(s, statement)
      ]
      if not winners:
        continue
    by = ', '.join(sorted(_describe(s, f'{sweep.file} or --gin') for s in winners))
    part = ' for some parts' if statement in used else ''
    problems.append(
      f'{_describe(statement)} has no effect{part}' + (f': overridden by {by}' if by else '')
    )
  if problems:
    raise UserError('\n'.join(problems))


def _is_within(inner: config_lib.Statement, outer: config_lib.Statement) -> bool:
  """Returns whether the scope of a statement is within that of another one."""
  return not outer.scope or inner.scope.startswith(f'{outer.scope}/')


def _describe(statement: config_lib.Statement, overrides: str = '') -> str:
  """Formats a binding with its location; `overrides` is the location of command line bindings."""
  place = overrides if statement.place == config_lib.COMMAND_LINE else str(statement.place)
  text = f'{statement.target} = {config_lib.to_gin(statement.value)}'
  return f'{text} ({place})' if place else text


def _set_programs(
  trials: Sequence[Trial], numbers: Mapping[str, _Numbers], inputs: Collection[str]
) -> Iterator[Trial]:
  """Yields the trials, with the same program for all that differ only in hyperparameters."""
  groups: dict[str, dict[str, dict[str, float]]] = {}
  for trial in trials:
    program, values = numbers[trial.identity]
    groups.setdefault(program, {})[trial.identity] = values
  for trial in trials:
    program, values = numbers[trial.identity]
    others = groups[program].values()
    differ = {
      k: v for k, v in values.items() if k in inputs or any(other[k] != v for other in others)
    }
    yield dataclasses.replace(trial, program=program if differ else trial.identity, numbers=differ)


@dataclasses.dataclass(frozen=True)
class _Resolved:
  """Config and cost of an arm, and its adjusted parameter as a binding, if any."""

  config: config_lib.Config
  identity: str
  cost: Cost
  adjusted: tuple[str, ...] = ()
  deviation: float = 0.0
  problem: str = ''

  def trial(self, arm: Arm, seed: int, unused: tuple[str, ...]) -> Trial:
    return Trial(
      variant=arm.variant,
      point=arm.plain_point,
      seed=seed,
      identity=self.identity,
      folder=f'{self.identity}-{seed}',
      changes=self._changes(arm),
      unused=unused,
      parameters=self.cost.parameters,
      flops_per_token=self.cost.per_token.visible,
      full_flops_per_token=self.cost.per_token.full,
      tokens_per_step=self.cost.tokens_per_step,
      num_steps=self.cost.num_steps,
      knob=''.join(map(shown, self.adjusted)),
      gap=self.deviation,
      problem=self.problem,
      tuned=arm.tuned,
      tuned_by=arm.seeds.get(seed),
    )

  def _changes(self, arm: Arm) -> tuple[str, ...]:
    """Returns the changes of the arm, with the binding of the adjusted parameter replaced."""
    adjusted = [*map(shown, self.adjusted)]
    names = [line.partition(' = ')[0] for line in adjusted]
    return (*(line for line in arm.changes if line.partition(' = ')[0] not in names), *adjusted)


class _Planner:
  """Resolves arms; caches the cost of each config."""

  def __init__(self, sweep: Sweep, step_seconds: StepSeconds | None):
    self.sweep, self.step_seconds = sweep, step_seconds
    self.base = read_base(sweep)
    self.seed = seed_of(self.base)
    self._base_targets = _used_targets(self.base)
    # Names of Sweep.knob that are not defined in any config so far.
    self._undefined = set(sweep.knobs)
    self._costs: dict[str, Cost] = {}
    self._data: dict[str, str] = {}
    self.identities = Identities(sweep.trials)
    self.numbers: dict[str, _Numbers] = {}
    # Optional packages, each with the parts that need it.
    self.packages: dict[str, set[str]] = {}
    self.goal = sweep.goal
    # Point of the last baseline, and its quantity; None without a match, or if it was not resolved.
    self._point: Mapping[str, object] | None = None
    self._target: float | None = None
    self._baseline: Cost | None = None

  def load(self, arm: Arm, more: Sequence[str] = ()) -> config_lib.Config:
    config = read_config(
      arm.files, (*arm.bindings, *more), base=self.base, overriding=arm.own_files
    )
    for package, parts in config.packages().items():
      self.packages.setdefault(package, set()).update(parts)
    return config

  def resolve(self, arm: Arm, adjusted: tuple[str, ...] = ()) -> _Resolved:
    config = self.load(arm, (*adjusted, f'{self.seed}=0'))
    if not adjusted:
      _check_effect(self.sweep, arm, config)
    identity = config_lib.identity(config, without=[self.seed])
    if identity not in self.numbers:
      numbers = config_lib.hyperparameters(config)
      same = config_lib.identity(config, without=[self.seed, *numbers])
      # `same` includes hyperparameters that are zero; `numbers` names the nonzero ones.
      digest = hashlib.sha256(repr((same, sorted(numbers))).encode()).hexdigest()
      self.numbers[identity] = digest[:12], numbers
      # Trials of a program have the same cost.
      cost = self._costs.get(digest[:12])
      function = cost_of if cost is None else lambda experiment: cost
      self._costs[digest[:12]] = _call_with_experiment(function, config)
    self._undefined -= {name for name in self._undefined if is_bindable(config, name)}
    return _Resolved(config, identity, self._costs[self.numbers[identity][0]], adjusted)

  def plan(self, arm: Arm) -> _Resolved:
    """Resolves an arm and matches its budget to the baseline, which is planned first at each point."""
    resolved = self.resolve(arm)
    if arm.variant != self.sweep.baseline or arm.point == self._point:
      self._check_metric(resolved.cost)
      return resolved if self._target is None else self._match(arm, resolved, self._target)
    self.goal = self.goal or _goal(self.sweep, resolved.config)
    name, better = {'min': ('failed_below', 'lower'), 'max': ('failed_above', 'higher')}[self.goal]
    if getattr(self.sweep, name) is not None:
      raise UserError(f"Sweep.{name} has no effect: a {better} '{self.sweep.metric}' is better")
    first, self._point, self._baseline = self._point is None, arm.point, resolved.cost
    if self.sweep.one_budget and not first:
      return resolved if self._target is None else self._match(arm, resolved, self._target)
    self._target = None if self.sweep.match is None else self._quantity(resolved)
    return resolved

  def _check_metric(self, cost: Cost) -> None:
    """Refuses a variant whose metric is computed on other data than that of the baseline."""
    if self._baseline is None or cost is self._baseline:
      return
    metric = self.sweep.metric
    sides = [evaluated(side.experiment, metric) for side in (cost, self._baseline)]
    if difference := sides[0].difference(sides[1]):
      raise UserError(f'{metric} is not comparable with the baseline: it is computed {difference}')

  def trials(self, arm: Arm, resolved: _Resolved) -> Iterator[tuple[Trial, str | None]]:
    """Yields the trials of an arm with their configs; None for trials that cannot run."""
    used = set(_used_targets(resolved.config))
    unused = tuple(target for target in self._base_targets if target not in used)
    identity = self.identities.of(
      resolved.config, self.seed, lambda: data_of(resolved.cost.experiment, self._data)
    )
    for seed in arm.seeds or self.sweep.seeds_of(arm.variant):
      trial = resolved.trial(arm, seed, unused)
      config = None
      if not resolved.problem:
        config = config_lib.render(self.load(arm, (*resolved.adjusted, f'{self.seed}={seed}')))
        trial = self._placed(trial, identity)
        self.numbers[trial.identity] = self.numbers[resolved.identity]
      yield trial, config

  def _placed(self, trial: Trial, identity: Identity) -> Trial:
    """Returns the trial with its identity, or with that of an earlier trial that is accepted instead."""
    name, changed, accepted = identity.name, tuple[str, ...](), False
    if self.identities.ended(name, trial.seed) is None:
      earlier = self.identities.last_ended(identity, trial.seed)
      if earlier is not None:
        changed, accepted = earlier.changes, self.sweep.accept_changed
        name = earlier.name if accepted else name
    return dataclasses.replace(
      trial,
      identity=name,
      folder=f'{name}-{trial.seed}',
      restated=identity.restated,
      changed=changed,
      accepted=accepted,
    )

  def summary(self, trials: Sequence[Trial]) -> Plan:
    """Returns the plan of the trials."""
    sweep = self.sweep
    return Plan(
      name=sweep.name,
      baseline=sweep.baseline,
      metric=sweep.metric,
      goal=self.goal or 'min',
      matched=sweep.match or '',
      config=config_lib.render(self.base),
      versions=versions(),
      commit=commit(),
      trials=tuple(trials),
      file=str(sweep.file.resolve()),
      margin=sweep.margin,
      failed_above=sweep.failed_above,
      failed_below=sweep.failed_below,
      max_seeds=sweep.max_seeds,
      published=sweep.published_results(),
    )

  def adjusted_problems(self) -> Iterator[str]:
    """Yields one line for each name in Sweep.knob that is not defined."""
    for name in sorted(self._undefined):
      hint = did_you_mean(name, parameters_of(self.base, [int]))
      yield f"{self.sweep.file}: Sweep.knob: there is no parameter or macro '{name}'{hint}"

  def _quantity(self, resolved: _Resolved) -> float:
    if self.sweep.match != 'seconds':
      return resolved.cost.of(str(self.sweep.match))
    if self.step_seconds is None:
      raise UserError("Sweep.match = 'seconds' needs a measurement of the step time")
    return self.step_seconds(resolved.config, resolved.identity) * resolved.cost.num_steps

  def _match(self, arm: Arm, resolved: _Resolved, target: float) -> _Resolved:
    """Adjusts a parameter of the arm to meet the budget; sets `problem` if that is impossible."""
    sweep = self.sweep
    off = self._quantity(resolved) / target - 1
    if sweep.match == 'steps' and self._baseline is not None:
      sizes = resolved.cost.batch_size, self._baseline.batch_size
      if sizes[0] != sizes[1]:
        off = resolved.cost.num_steps * sizes[0] / (target * sizes[1]) - 1
        problem = f'{sizes[0]} examples per step, and the baseline {sizes[1]}: Sweep.match is steps'
        return dataclasses.replace(resolved, deviation=off, problem=problem)
    if abs(off) <= sweep.tolerance:
      return dataclasses.replace(resolved, deviation=off)
    text = f'{abs(off):.1%} {"more" if off > 0 else "fewer"} {sweep.match} than the baseline'
    if sweep.match == 'steps':
      return dataclasses.replace(resolved, deviation=off, problem=f'{text}: Sweep.match is steps')
    try:
      name, start = adjusted_parameter(resolved.config, sweep.knobs)
      match = solve(
        lambda value: self._quantity(self.resolve(arm, (f'{name}={value}',))),
        start,
        target,
        sweep.tolerance,
      )
    except UserError as error:
      return dataclasses.replace(resolved, deviation=off, problem=f'{text}, and {error}')
    adjusted = self.resolve(arm, (f'{name}={match.value}',))
    problem = ''
    if abs(match.deviation) > sweep.tolerance:
      problem = f'{text}; the nearest, {name} = {match.value}, deviates by {match.deviation:+.1%}'
    return dataclasses.replace(adjusted, deviation=match.deviation, problem=problem)
