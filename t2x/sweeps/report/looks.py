"""Records when a complete sweep was reported (a look), and corrects later looks with more seeds.

Adding seeds because a result was not significant, and testing again at the same level, declares differences
too often. With `Sweep.max_seeds`, the level is divided among the looks by alpha spending (Lan and DeMets
1983, https://doi.org/10.1093/biomet/70.3.659) with the function of O'Brien and Fleming: little is spent on
early looks. Each look has the level that the function adds since the last look, which bounds the error of all
looks together. Without `Sweep.max_seeds` the first look has the full level, and later looks are exploratory.
"""

import dataclasses
import datetime
import json
import math
from collections.abc import Sequence
from pathlib import Path

from scipy import stats

from t2x.files import write_atomically
from t2x.sweeps.json_files import dataclass_from_json, read_json
from t2x.sweeps.records import Plan
from t2x.sweeps.statistics import ALPHA

_FILE = 'looks.json'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
  """A report of a complete sweep.

  Attributes:
    seeds: seeds of its variants.
    max_seeds: `Sweep.max_seeds` at the time.
    date: UTC time of the first report with these seeds.
    baseline_seeds: seeds of the baseline if it has others (`Sweep.baseline_seeds`); () if not.
  """

  seeds: tuple[int, ...]
  max_seeds: int | None = None
  date: str = ''
  baseline_seeds: tuple[int, ...] = ()

  def has_seeds_of(self, other: 'Look') -> bool:
    """Returns whether another look has the same seeds."""
    return (self.seeds, self.baseline_seeds) == (other.seeds, other.baseline_seeds)


@dataclasses.dataclass(frozen=True)
class Looks:
  """Content of looks.json."""

  looks: tuple[Look, ...] = ()


@dataclasses.dataclass(frozen=True)
class Level:
  """Level of the tests at a look.

  Attributes:
    alpha: probability of any wrong verdict.
    number: number of the look, from 1.
    exploratory: why the verdicts are exploratory, as a sentence; '' if they are not.
  """

  alpha: float = ALPHA
  number: int = 1
  exploratory: str = ''

  @property
  def confidence(self) -> str:
    """Confidence of the intervals: '95 %'."""
    return f'{100 * (1 - self.alpha):.3g} %'

  def text(self, plan: Plan) -> str:
    """Describes a corrected or exploratory look; '' for the only look."""
    if self.exploratory:
      return f'Exploratory: {self.exploratory}'
    if plan.max_seeds is None:
      return ''
    if self.number == 1 and math.isclose(self.alpha, ALPHA):
      return f'One look, with all {plan.max_seeds} seeds of Sweep.max_seeds: level {ALPHA:g}.'
    return (
      f'Look {self.number} of a sweep that is planned for {plan.max_seeds} seeds: level '
      f"{self.alpha:.4f} by alpha spending (O'Brien and Fleming), {ALPHA:g} for all looks together."
    )


def read_looks(folder: Path) -> list[Look]:
  """Reads the looks of a sweep folder, the first one first.

  Raises:
    Damaged: looks.json is damaged.
  """
  path = folder / _FILE
  try:
    return [*dataclass_from_json(Looks, read_json(path), path).looks]
  except FileNotFoundError:
    return []


def record_look(folder: Path, plan: Plan) -> None:
  """Appends the seeds of a complete sweep to looks.json, unless they are the last ones."""
  looks, look = read_looks(folder), _look(plan)
  if looks and looks[-1].has_seeds_of(look):
    return
  date = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  looks.append(dataclasses.replace(look, date=date))
  text = json.dumps(dataclasses.asdict(Looks(tuple(looks))), indent=1) + '\n'
  write_atomically(folder / _FILE, text.encode())


def level_of(plan: Plan, looks: Sequence[Look]) -> Level:
  """Returns the level of the look at the seeds of a plan, given all recorded looks."""
  own = _look(plan)
  seeds = own.seeds
  recorded = [look.has_seeds_of(own) for look in looks]
  before = looks[: recorded.index(True)] if any(recorded) else looks
  number = len(before) + 1
  reason = _exploratory(plan, seeds, before)
  if reason or plan.max_seeds is None or not seeds:
    return Level(number=number, exploratory=reason)
  spent = max((_spent(len(look.seeds), plan.max_seeds) for look in before), default=0.0)
  return Level(_spent(len(seeds), plan.max_seeds) - spent, number)


def _look(plan: Plan) -> Look:
  """Returns the look at a plan, without its date."""
  baseline = {trial.seed for trial in plan.trials if trial.variant == plan.baseline}
  seeds = {trial.seed for trial in plan.trials if trial.variant != plan.baseline} or baseline
  others = tuple(sorted(baseline)) if baseline != seeds else ()
  return Look(seeds=tuple(sorted(seeds)), max_seeds=plan.max_seeds, baseline_seeds=others)


def _exploratory(plan: Plan, seeds: Sequence[int], before: Sequence[Look]) -> str:
  advice = '`t2x sweep --confirm` tests its verdicts with fresh seeds.'
  count = len(seeds)
  if plan.max_seeds is not None and count > plan.max_seeds:
    return f'{count} seeds are more than Sweep.max_seeds = {plan.max_seeds}; {advice}'
  if not before:
    return ''
  last = before[-1]
  if set(last.seeds) == set(seeds):
    return f'the seeds of the baseline changed after the report of {last.date}; {advice}'
  if any(look.max_seeds is None or look.max_seeds != plan.max_seeds for look in before):
    return (
      f'the sweep was reported with {len(last.seeds)} seeds on {last.date} before it got {count}, '
      f'and Sweep.max_seeds was not set to the same number at each report; {advice}'
    )
  if not set(last.seeds) < set(seeds):
    return f'the seeds of the report of {last.date} were not kept; {advice}'
  return ''


def _spent(seeds: int, max_seeds: int) -> float:
  """Returns the level spent by O'Brien and Fleming's function when this part of the seeds has ended."""
  limit = stats.norm.isf(ALPHA / 2) / math.sqrt(min(1.0, seeds / max_seeds))
  return float(2 * stats.norm.sf(limit))
