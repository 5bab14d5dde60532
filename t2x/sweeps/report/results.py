"""What a sweep has found so far: each trial with its outcome, each variant with its verdict."""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.sweeps.json_files import Damaged, is_number, metric_lines
from t2x.sweeps.records import Outcome, Plan, Trial, read_outcome, read_plan
from t2x.sweeps.statistics import (
  Comparison,
  Ranking,
  Sample,
  Summary,
  compare,
  pareto_front,
  ranking,
  summarise,
)
from t2x.sweeps.timing import at_once, step_seconds

ENDED = ('finished', 'diverged', 'failed')
# Of a row, what its quality is held against.
COSTS = ('parameters', 'flops_per_token', 'flops', 'seconds', 'memory_bytes')
# What else is known of its cost. The first seed may have compiled for all: of them, the largest.
FURTHER = ('step_seconds', 'compile_seconds', 'tokens_per_second', 'load', 'at_once')
# Squares of larger ones, of which a standard deviation is made, overflow.
_LARGEST = 1e100

Lines = list[dict[str, Any]]
# Lines of metrics.jsonl by split.
RunLines = dict[str, Lines]


@dataclasses.dataclass(frozen=True)
class Entry:
  """A trial and what became of it.

  Attributes:
    status: 'finished', 'diverged', 'failed', 'running' (it has begun; it may stand still after an
      interruption) or 'waiting'.
    reason: why it diverged or failed.
    folder: its run folder; the empty path where the sweep does not run it.
    step_seconds: of a training step; None: unknown.
    at_once: how many trials ran on its machine at a time, itself included; None: unknown.
  """

  trial: Trial
  folder: Path
  status: str
  reason: str
  outcome: Outcome | None
  step_seconds: float | None = None
  at_once: float | None = None

  def value(self, metric: str) -> float | None:
    """The metric, where it finished with one that is a number."""
    if self.status != 'finished' or self.outcome is None:
      return None
    value: Any = self.outcome.metrics.get(metric)
    return float(value) if _is_usable(value) else None


@dataclasses.dataclass(frozen=True)
class Row:
  """A variant at a point of the grid.

  Attributes:
    point: index into `Results.points`.
    comparison: with the baseline at the same point; None: it is the baseline.
    costs: by name, of `COSTS` and `FURTHER`, medians over its finished seeds; None: unknown. `seconds`
      are those of all training steps, without compilation, evaluation and checkpoints.
    fronts: for each of `COSTS`, whether the row is on the Pareto front of its point.
    note: what else is to be known, '' if nothing.
  """

  variant: str
  point: int
  entries: tuple[Entry, ...]
  summary: Summary
  comparison: Comparison | None
  costs: Mapping[str, float | None]
  fronts: Mapping[str, bool]
  ranks: tuple[int, int] | None
  note: str

  @property
  def verdict(self) -> str:
    """'baseline', or that of the comparison."""
    return self.comparison.verdict if self.comparison else 'baseline'

  def count(self, status: str) -> int:
    """How many of its trials have this status."""
    return sum(entry.status == status for entry in self.entries)


@dataclasses.dataclass(frozen=True)
class Results:
  """All that a report tells.

  Attributes:
    points: the points of the grid, in the order of the plan; one empty one without a grid.
    rows: by point, then in the order of the variants.
    rankings: one a point.
    lines: metrics by run folder and split, each line with the seconds that timing.jsonl has for it.
    damaged: one line for each file of a trial that is damaged.
  """

  plan: Plan
  points: Sequence[Mapping[str, Any]]
  entries: Sequence[Entry]
  rows: Sequence[Row]
  rankings: Sequence[Ranking]
  lines: Mapping[Path, RunLines]
  damaged: Sequence[str]

  @property
  def ended(self) -> int:
    """How many trials have ended."""
    return sum(entry.status in ENDED for entry in self.entries)

  @property
  def axes(self) -> list[str]:
    """Names of the grid's axes."""
    return list(dict.fromkeys(axis for point in self.points for axis in point))

  @property
  def origins(self) -> dict[str, list[str]]:
    """Versions, device and commit of the trials that have ended: all that there are, by name.

    Those of the plan where no trial tells them.
    """
    made = [dict(one.outcome.made_by) for one in self.entries if one.outcome]
    if not any(made):
      made = [dict(self.plan.versions) | {'commit': self.plan.commit or 'unknown'}]
    names = dict.fromkeys(name for one in made for name in one)
    return {name: sorted(_values(name, made)) for name in names}

  def warning(self) -> str:
    """One line where the trials were not all made alike, '' where they were."""
    mixed = {name: found for name, found in self.origins.items() if len(found) > 1}
    if not mixed:
      return ''
    told = '; '.join(f'{name} {", ".join(found)}' for name, found in mixed.items())
    return f'The trials were not all made alike, which may be what differs: {told}.'

  def progress(self) -> str:
    """'37 of 220 trials ended: 30 finished, ...'."""
    counts = dict.fromkeys((*ENDED, 'running', 'waiting'), 0)
    for entry in self.entries:
      counts[entry.status] += 1
    told = ', '.join(f'{count} {status}' for status, count in counts.items() if count)
    return f'{self.ended} of {len(self.entries)} trials ended: {told}'


def _values(name: str, made: Sequence[Mapping[str, str]]) -> set[str]:
  """What trials were made by. A trial may have no project, and import other modules."""
  optional = name == 'project' or name.startswith('module ')
  return {one.get(name, 'unknown') for one in made if name in one or not optional}


def read_results(folder: Path) -> Results:
  """Reads sweep.json in `folder` and what there is of its trials.

  Raises:
    UserError: no sweep folder, or a file in it that cannot be read.
  """
  plan = read_plan(folder)
  damaged: list[str] = []
  trials = folder.parent / 'trials'
  entries = [_entry(trials / trial.folder, trial, plan, damaged) for trial in plan.trials]
  lines = {one.folder: _lines(one, damaged) for one in entries if one.folder.name}
  entries = _timed(entries, {folder: timing for folder, (_, timing) in lines.items()})
  keys = list(dict.fromkeys(_key(trial.point) for trial in plan.trials))
  points = [json.loads(key) for key in keys]
  cells: dict[tuple[int, str], list[Entry]] = {}
  for entry in entries:
    cells.setdefault((keys.index(_key(entry.trial.point)), entry.trial.variant), []).append(entry)
  order = [
    (point, variant)
    for point in range(len(points))
    for variant in plan.variants
    if (point, variant) in cells
  ]
  identities: dict[int, dict[str, str]] = {}
  for point, variant in order:
    identities.setdefault(point, {})[variant] = cells[point, variant][0].trial.identity
  samples = {cell: _sample(cells[cell], plan.metric) for cell in order}
  planned = [(point, variant) for point, variant in order if variant != plan.baseline]
  against = [(samples[cell], samples.get((cell[0], plan.baseline), Sample({}))) for cell in planned]
  verdicts = dict(zip(planned, compare(against, plan.goal), strict=True))
  rankings = [
    ranking(
      {variant: samples[at, variant].values for at, variant in order if at == point}, plan.goal
    )
    for point in range(len(points))
  ]
  rows = [
    Row(
      variant,
      point,
      tuple(cells[point, variant]),
      summarise(list(samples[point, variant].values.values())),
      verdicts.get((point, variant)),
      _costs(cells[point, variant]),
      {},
      rankings[point].ranks.get(variant),
      _note(
        verdicts.get((point, variant)),
        cells[point, variant],
        _twin(variant, plan.baseline, identities[point]),
        len(samples[point, variant].values),
      ),
    )
    for point, variant in order
  ]
  rows = _with_fronts(rows, plan)
  curves = {folder: found for folder, (found, _) in lines.items()}
  return Results(plan, points, entries, rows, rankings, curves, [*dict.fromkeys(damaged)])


def _entry(folder: Path, trial: Trial, plan: Plan, damaged: list[str]) -> Entry:
  if trial.problem:
    # Its config is unmatched, and may be that of a trial of another sweep, which was run.
    return Entry(trial, Path(), 'failed', trial.problem, None)
  try:
    outcome = read_outcome(folder)
    if outcome is not None and outcome.status == 'finished':
      _check_kind(folder, outcome, plan.metric)
  except Damaged as error:
    damaged.append(f'{error}; `t2x sweep` runs the trial again')
    return Entry(trial, folder, 'failed', str(error), None)
  if outcome is not None:
    if outcome.status == 'finished' and plan.metric not in outcome.metrics:
      missing = f"its evaluation has no metric '{plan.metric}'"
      return Entry(trial, folder, 'failed', missing, outcome)
    if outcome.status == 'finished' and not _is_usable(outcome.metrics[plan.metric]):
      return Entry(trial, folder, 'diverged', f'{plan.metric} is not finite', outcome)
    return Entry(trial, folder, outcome.status, outcome.reason, outcome)
  begun = any((folder / name).exists() for name in ('log.txt', 'metrics.jsonl'))
  return Entry(trial, folder, 'running' if begun else 'waiting', '', None)


def _check_kind(folder: Path, outcome: Outcome, metric: str) -> None:
  """Raises Damaged where the deciding metric is no kind of number."""
  if not isinstance(outcome.metrics.get(metric), int | float | None):
    raise Damaged(f"{folder / 'trial.json'} is damaged: metrics['{metric}'] is not a number")


def _lines(entry: Entry, damaged: list[str]) -> tuple[RunLines, Lines]:
  """The metrics of a run, and timing.jsonl. A run that goes on may be writing the last lines."""
  problems = damaged if entry.status in ENDED else None
  timing = metric_lines(entry.folder / 'timing.jsonl', problems)
  seconds = {
    (line['split'], line['step']): line['seconds']
    for line in timing
    if is_number(line.get('seconds'))
  }
  found: RunLines = {}
  for line in metric_lines(entry.folder / 'metrics.jsonl', problems):
    split = line['split']
    line['seconds'] = seconds.get((split, line['step']))
    found.setdefault(split, []).append(line)
  return found, timing


def _timed(entries: Sequence[Entry], timing: Mapping[Path, Lines]) -> list[Entry]:
  """The entries with what their steps took, and how many trials ran at a time."""
  known = {one.folder: one.outcome.conditions for one in entries if one.outcome}
  conditions = [one for one in known.values() if one is not None]
  found = []
  for entry in entries:
    if (outcome := entry.outcome) is not None:
      seconds, own = outcome.step_seconds, outcome.conditions
      if seconds is None and (of_all := step_seconds(timing.get(entry.folder, ()))):
        # An older version wrote trial.json.
        seconds = of_all / outcome.together
      count = None if own is None else at_once(own, conditions)
      entry = dataclasses.replace(entry, step_seconds=seconds, at_once=count)
    found.append(entry)
  return found


def _is_usable(value: Any) -> bool:
  return is_number(value) and abs(value) < _LARGEST


def _key(point: Mapping[str, Any]) -> str:
  return json.dumps(point, sort_keys=True)


def _sample(entries: Iterable[Entry], metric: str) -> Sample:
  entries = list(entries)
  values = {entry.trial.seed: entry.value(metric) for entry in entries}
  return Sample(
    {seed: value for seed, value in values.items() if value is not None},
    _seeds(entries, 'diverged'),
  )


def _note(comparison: Comparison | None, entries: Sequence[Entry], twin: str, finished: int) -> str:
  """What the numbers do not tell: failed seeds, seeds without a pair, a config that is another's."""
  counts = {status: _seeds(entries, status) for status in ('failed', 'diverged')}
  of = len({entry.trial.seed for entry in entries})
  told = {status: f'{count} of {of} seeds {status}' for status, count in counts.items() if count}
  if comparison is None:
    return '; '.join(told.values())
  notes = [told['failed']] if 'failed' in told else []
  if twin:
    notes.append(f'the config is that of {twin}')
  if 0 < comparison.pairs < finished:
    notes.append(f'{comparison.pairs} {"pair" if comparison.pairs == 1 else "pairs"}')
  return '; '.join([*notes, *([comparison.note] if comparison.note else [])])


def _twin(variant: str, baseline: str, identities: Mapping[str, str]) -> str:
  """The first variant with the same config; '' where that is this one.

  `identities`: of the variants at one point, in their order.
  """
  own = identities[variant]
  first = next(name for name, one in identities.items() if one == own)
  if first == variant or not own:
    return ''
  return 'the baseline' if first == baseline else first


def _seeds(entries: Iterable[Entry], status: str) -> int:
  return len({entry.trial.seed for entry in entries if entry.status == status})


def _costs(entries: Sequence[Entry]) -> dict[str, float | None]:
  trial = entries[0].trial
  done = [entry for entry in entries if entry.status == 'finished']
  outcomes = [entry.outcome for entry in done if entry.outcome]
  steps = [entry.step_seconds for entry in done if entry.step_seconds]
  conditions = [one.conditions for one in outcomes if one.conditions]
  compiled = [one.compile_seconds for one in outcomes if one.compile_seconds is not None]
  told: dict[str, list[Any]] = {
    'parameters': [trial.parameters or None],
    'flops_per_token': [trial.flops_per_token or None],
    'flops': [(trial.flops_per_token * trial.tokens_per_step * trial.num_steps) or None],
    'seconds': [one * trial.num_steps for one in steps],
    'memory_bytes': [one.memory_bytes for one in outcomes],
    'step_seconds': steps,
    'compile_seconds': [max(compiled)] if compiled else [],
    'tokens_per_second': [one.tokens_per_second for one in outcomes],
    'load': [(one.load_before + one.load_after) / 2 for one in conditions],
    'at_once': [entry.at_once for entry in done],
  }
  known = {name: [one for one in values if one is not None] for name, values in told.items()}
  medians = {name: float(statistics.median(ones)) for name, ones in known.items() if ones}
  return {name: one if math.isfinite(one := medians.get(name, math.nan)) else None for name in told}


def _with_fronts(rows: Sequence[Row], plan: Plan) -> list[Row]:
  fronts: list[dict[str, bool]] = [{} for _ in rows]
  for cost in COSTS:
    for point in {row.point for row in rows}:
      placed = [
        (number, value, row.summary.mean)
        for number, row in enumerate(rows)
        if row.point == point
        and (value := row.costs[cost]) is not None
        and row.summary.mean is not None
      ]
      values = [value for _, value, _ in placed], [mean for *_, mean in placed]
      for (number, *_), on_front in zip(placed, pareto_front(*values, plan.goal), strict=True):
        fronts[number][cost] = on_front
  return [dataclasses.replace(row, fronts=front) for row, front in zip(rows, fronts, strict=True)]
