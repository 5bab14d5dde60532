"""Records the reports of a sweep (looks), and corrects the verdicts of later ones.

A report has verdicts when all planned trials have ended: finished, diverged or failed. Looking before, or
adding seeds because a result was not significant, and testing again at the same level, declares differences
too often. With `Sweep.max_seeds`, the level is divided among the looks by alpha spending (Lan and DeMets
1983, https://doi.org/10.1093/biomet/70.3.659) with the function of O'Brien and Fleming: little is spent on
early looks. Each look has the level that the function adds since the last look, which bounds the error of all
looks together. A partial report then judges the seeds with which all variants have ended.

Without `Sweep.max_seeds`, and after any other change of what decides the verdicts (variants, metric, margin, tuned
values), the first look has the full level. Later looks are exploratory, and corrected for the comparisons of all looks.
"""

import dataclasses
import datetime
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from t2x.base.json_files import dataclass_from_json, read_json, write_json
from t2x.statistics import formats
from t2x.statistics.spending import spent_level
from t2x.statistics.summaries import ALPHA
from t2x.sweeps.records import Plan, Trial

_FILE = 'looks.json'
# Fields of a plan that decide no verdict, or are part of a look in another form.
_NO_SETTINGS = frozenset(
  {
    'name',
    'baseline',
    'config',
    'versions',
    'commit',
    'trials',
    'file',
    'max_seeds',
    'published',
    'tuning',
  }
)

# Settings of a look that are hashes of configs.
_CONFIGS = ('baseline', 'variants')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
  """A report of a sweep with verdicts.

  Attributes:
    seeds: seeds of its variants that were judged.
    max_seeds: `Sweep.max_seeds` at the time.
    date: UTC time of the first such report.
    baseline_seeds: seeds of the baseline if it has others (`Sweep.baseline_seeds`); () if not.
    settings: what else decides the verdicts: settings of the plan by name, and hashes of the resolved configs of
      the baseline and the variants at all points of the grid. {} in files of older versions.
    comparisons: number of planned comparisons; 0 in files of older versions.
  """

  seeds: tuple[int, ...]
  max_seeds: int | None = None
  date: str = ''
  baseline_seeds: tuple[int, ...] = ()
  settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
  comparisons: int = 0

  def repeats(self, other: 'Look') -> bool:
    """Returns whether another look has the same seeds and settings."""
    same_seeds = (self.seeds, self.baseline_seeds) == (other.seeds, other.baseline_seeds)
    return same_seeds and not self.changes(other)

  def changes(self, other: 'Look') -> list[str]:
    """Returns the names of the settings that differ from those of another look; [] if that has none."""
    if not other.settings:
      return []
    names = sorted({*self.settings, *other.settings})
    return [name for name in names if self.settings.get(name) != other.settings.get(name)]


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
    exploratory: why the verdicts are exploratory; '' if they are not.
    seeds: number of seeds that are judged.
  """

  alpha: float = ALPHA
  number: int = 1
  exploratory: str = ''
  seeds: int = dataclasses.field(default=0, compare=False)

  @property
  def confidence(self) -> str:
    """Confidence of the intervals: '95 %'."""
    return formats.confidence(self.alpha)

  def text(self, plan: Plan) -> str:
    """Describes a corrected or exploratory look; '' for the only look."""
    if self.exploratory:
      return (
        f'Exploratory: {self.exploratory}. The verdicts are corrected for all comparisons of all reports (level '
        f'{self.alpha:.2g}); `t2x sweep --confirm` tests them with fresh seeds.'
      )
    if plan.max_seeds is None:
      return ''
    if self.number == 1 and math.isclose(self.alpha, ALPHA):
      return f'One look, with all {plan.max_seeds} seeds of Sweep.max_seeds: level {ALPHA:g}.'
    return (
      f'Look {self.number} of a sweep that is planned for {plan.max_seeds} seeds: level {self.alpha:.4f} for '
      f"{self.seeds} seeds by alpha spending (O'Brien and Fleming), {ALPHA:g} for all looks together."
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


def judged(plan: Plan, ended: Sequence[bool]) -> Plan | None:
  """Returns the part of a plan that a report may judge; None before all trials have ended.

  With `Sweep.max_seeds`, which spends the level, that are the seeds with which all variants have ended.

  Args:
    plan: the plan.
    ended: whether each of its trials has ended.
  """
  if all(ended):
    return plan
  unfinished = {trial.seed for trial, done in zip(plan.trials, ended, strict=True) if not done}
  seeds = {trial.seed for trial in plan.trials if trial.variant != plan.baseline}
  complete = seeds - unfinished
  # Further seeds of the baseline are part of every comparison.
  of_baseline = {trial.seed for trial in plan.trials} - seeds
  if plan.max_seeds is None or not complete or of_baseline & unfinished:
    return None
  return _with_seeds(plan, complete | of_baseline)


def _with_seeds(plan: Plan, seeds: Collection[int]) -> Plan:
  return dataclasses.replace(plan, trials=tuple(t for t in plan.trials if t.seed in seeds))


def record_look(folder: Path, plan: Plan) -> None:
  """Appends a look at a plan, or at the judged part of one, to looks.json, unless it repeats a recorded one."""
  looks, look = read_looks(folder), look_of(plan)
  if any(look.repeats(other) for other in looks):
    return
  date = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  looks.append(dataclasses.replace(look, date=date))
  write_json(folder / _FILE, Looks(tuple(looks)))


def level_of(plan: Plan, looks: Sequence[Look]) -> Level:
  """Returns the level of the look at a plan, or at the judged part of one, given all recorded looks."""
  own = look_of(plan)
  recorded = [own.repeats(look) for look in looks]
  before = looks[: recorded.index(True)] if any(recorded) else looks
  number, count = len(before) + 1, len(own.seeds)
  if reason := _exploratory(plan, own, before):
    # Looks of older versions have an unknown number of comparisons.
    of_all = own.comparisons + sum(look.comparisons or own.comparisons for look in before)
    alpha = ALPHA * own.comparisons / of_all if of_all else ALPHA
    return Level(alpha, number, reason, count)
  if plan.max_seeds is None or not own.seeds:
    return Level(number=number, seeds=count)
  spent = max((spent_level(len(look.seeds), plan.max_seeds) for look in before), default=0.0)
  return Level(spent_level(count, plan.max_seeds) - spent, number, seeds=count)


def warning(folder: Path, plan: Plan) -> str:
  """Returns how earlier reports of a sweep folder make the verdicts on a plan exploratory; '' if they do not.

  Raises:
    Damaged: looks.json is damaged.
  """
  reason = level_of(plan, read_looks(folder)).exploratory
  if not reason or level_of(plan, ()).exploratory:
    return ''
  return (
    f'verdicts will be exploratory: {reason}; if that report was only a test, use another --out'
  )


def look_of(plan: Plan) -> Look:
  """Returns the look at a plan, without its date."""
  baseline = [trial for trial in plan.trials if trial.variant == plan.baseline]
  variants = [trial for trial in plan.trials if trial.variant != plan.baseline]
  of_baseline = {trial.seed for trial in baseline}
  seeds = {trial.seed for trial in variants} or of_baseline
  settings = {
    field.name: json.dumps(value)
    for field in dataclasses.fields(plan)
    # Defaults are left out, so that a new setting does not change older looks.
    if field.name not in _NO_SETTINGS and (value := getattr(plan, field.name)) != field.default
  }
  return Look(
    seeds=tuple(sorted(seeds)),
    max_seeds=plan.max_seeds,
    baseline_seeds=tuple(sorted(of_baseline)) if of_baseline != seeds else (),
    settings=settings | dict(zip(_CONFIGS, (_hash(baseline), _hash(variants)), strict=True)),
    comparisons=len({json.dumps([trial.variant, trial.point]) for trial in variants}),
  )


def _hash(trials: Iterable[Trial]) -> str:
  """Hashes the resolved configs of trials and their points of the grid, in any order and for any seeds.

  Tuned values are results, which differ between the seeds: they are hashed with the seed.
  """
  cells = {
    json.dumps(
      [trial.point, trial.identity, *([] if trial.tuned_by is None else [trial.seed])],
      sort_keys=True,
    )
    for trial in trials
  }
  return hashlib.sha256('\n'.join(sorted(cells)).encode()).hexdigest()[:12]


def _exploratory(plan: Plan, own: Look, before: Sequence[Look]) -> str:
  count = len(own.seeds)
  if own.max_seeds is not None and count > own.max_seeds:
    return f'{count} seeds are more than Sweep.max_seeds = {own.max_seeds}'
  for look in before:
    # Seeds that were added are no change.
    seeds = {*look.seeds, *look.baseline_seeds}
    same = look_of(_with_seeds(plan, seeds)) if seeds < {t.seed for t in plan.trials} else own
    if changes := same.changes(look):
      configs = [name for name in changes if name in _CONFIGS]
      names = [name for name in changes if name not in _CONFIGS]
      names += [f'configs of {" and ".join(configs)}'] if configs else []
      return f'{" and ".join(names)} changed after the report of {look.date}'
  if not before:
    return ''
  last = before[-1]
  if set(last.seeds) == set(own.seeds):
    return f'the seeds of the baseline changed after the report of {last.date}'
  if any(look.max_seeds is None or look.max_seeds != own.max_seeds for look in before):
    return (
      f'the sweep was reported with {len(last.seeds)} seeds on {last.date} before it got {count}, '
      'and Sweep.max_seeds was not set to the same number at each report'
    )
  if not set(last.seeds) < set(own.seeds):
    return f'the seeds of the report of {last.date} were not kept'
  return ''
