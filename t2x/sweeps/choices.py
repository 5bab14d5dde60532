"""Tuned values: the choice from the outcomes of the tuning trials, and the file OUT/NAME/tuning.json."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from t2x.base.errors import UserError
from t2x.base.files import write_atomically
from t2x.sweeps.json_files import Damaged, dataclass_from_json, is_number, read_json
from t2x.sweeps.records import Outcome, Plan, Trial, judge
from t2x.sweeps.tune import Tune

_FILE = 'tuning.json'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
  """Results of a value of the tuned parameter.

  Attributes:
    value: the value.
    mean: mean metric of the tuning seeds that finished; None without any.
    n: number of these seeds.
    metrics: metric by seed.
    diverged: number of seeds that diverged or did not learn.
    failed: number of seeds that failed, or cannot run.
  """

  value: Any
  mean: float | None
  n: int
  metrics: Mapping[str, float]
  diverged: int = 0
  failed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
  """Tuned value of a variant at a point of the grid.

  Attributes:
    point: values of the grid by axis, as in `Trial`.
    parameter: the tuned parameter.
    own: value of the variant without tuning.
    chosen: the tuned value.
    edge: whether the tuned value is the smallest or the largest one that was tried; '' if neither, or if no value
      beyond it is valid (a rate of 0).
    tried: results of the values, in increasing order.
  """

  variant: str
  point: Mapping[str, Any]
  parameter: str
  own: Any
  chosen: Any
  edge: Literal['', 'smallest', 'largest']
  tried: tuple[Tried, ...]

  @property
  def problem(self) -> str:
    """Why the variant is not tuned; '' if it is."""
    return f'the best {self.parameter} is the {self.edge} tried' if self.edge else ''

  @property
  def note(self) -> str:
    """Remark on a value that was not chosen from results; '' without one."""
    return '' if any(item.n for item in self.tried) else 'no tuning trial finished: own value'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
  """Content of tuning.json, a function of the outcomes of the tuning trials.

  Attributes:
    metric: metric of the choice.
    goal: whether a lower ('min') or a higher ('max') metric is better.
    seeds: tuning seeds.
    keep: share of the values that is kept after each round (Tune.keep).
    trials: number of tuning trials.
    choices: tuned values, in the order of the plan.
  """

  metric: str
  goal: Literal['min', 'max']
  seeds: tuple[int, ...]
  keep: float
  trials: int
  choices: tuple[Choice, ...]

  def of(self, variant: str, point: Mapping[str, Any]) -> Choice | None:
    """Returns the choice of a variant at a point of the grid; None if it was not tuned."""
    matches = (c for c in self.choices if (c.variant, dict(c.point)) == (variant, dict(point)))
    return next(matches, None)

  def problem_of(self, variant: str, baseline: str, point: Mapping[str, Any]) -> str:
    """Returns why there is no verdict on a variant: it or its baseline is not tuned; '' if both are."""
    own, other = self.of(variant, point), self.of(baseline, point)
    if own is not None and own.problem:
      return f'not tuned: {own.problem}'
    return (
      f'{baseline} is not tuned: {other.problem}' if other is not None and other.problem else ''
    )


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


def write_tuning(folder: Path, tuning: Tuning) -> None:
  """Writes OUT/NAME/tuning.json."""
  folder.mkdir(parents=True, exist_ok=True)
  text = json.dumps(dataclasses.asdict(tuning), indent=1, ensure_ascii=False) + '\n'
  write_atomically(folder / _FILE, text.encode())


def read_tuning(folder: Path) -> Tuning:
  """Reads OUT/NAME/tuning.json.

  Raises:
    UserError: the file does not exist or is damaged.
  """
  path = folder / _FILE
  try:
    tuning = dataclass_from_json(Tuning, read_json(path), path)
  except FileNotFoundError:
    raise UserError(f'there is no {path}: run `t2x sweep` to write it') from None
  for number, choice in enumerate(tuning.choices):
    values = [choice.own, choice.chosen, *(item.value for item in choice.tried)]
    if not all(map(is_number, values)):
      raise Damaged(f'{path} is damaged: choices[{number}] has a value that is not a number')
  return tuning
