"""Results of a sweep so far: the outcome of each trial and the verdict on each variant."""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.base.json_files import Damaged
from t2x.run_folder.lines import Lines, RunLines, run_lines
from t2x.statistics.comparisons import Comparison, Sample, compare
from t2x.statistics.differences import block_means
from t2x.statistics.summaries import Ranking, Summary, pareto_front, ranking, summarise
from t2x.sweeps.examples import read_examples
from t2x.sweeps.records import Outcome, Plan, Trial, is_usable, judge, read_outcome, read_plan
from t2x.sweeps.report.looks import Level, Look, judged, level_of, read_looks
from t2x.sweeps.report.sources import accepted_trials, mixed_sources
from t2x.sweeps.timing import at_once, step_seconds
from t2x.sweeps.tune import FEWEST_SEEDS, Tuning, read_tuning

ENDED = ('finished', 'diverged', 'failed')
# Costs for the comparison with quality and for Pareto fronts, and their names in reports.
COSTS = {
  'parameters': 'parameters',
  'flops_per_token': 'FLOPs per token',
  'flops': 'FLOPs',
  'seconds': 'seconds',
  'memory_bytes': 'memory',
}


@dataclasses.dataclass(frozen=True)
class Entry:
  """A trial and its outcome.

  Attributes:
    status: 'finished', 'diverged', 'failed', 'running' (started, possibly interrupted) or 'waiting'.
    reason: why it diverged or failed.
    folder: run folder; the empty path if the sweep does not run the trial.
    step_seconds: seconds per training step; None if unknown.
    at_once: average number of concurrent trials on its machine, itself included; None if unknown.
  """

  trial: Trial
  folder: Path
  status: str
  reason: str
  outcome: Outcome | None
  step_seconds: float | None = None
  at_once: float | None = None

  @property
  def num_steps(self) -> int:
    """Number of optimizer steps: taken by a finished trial, planned for an unfinished trial."""
    taken = None if self.outcome is None else self.outcome.num_steps
    return self.trial.num_steps if taken is None else taken

  def value(self, metric: str) -> float | None:
    """Returns the metric if the trial finished and the metric is a number."""
    if self.status != 'finished' or self.outcome is None:
      return None
    value = self.outcome.metrics.get(metric)
    return float(value) if is_usable(value) else None


@dataclasses.dataclass(frozen=True)
class Row:
  """A variant at a point of the grid.

  Attributes:
    point: index into `Results.points`.
    comparison: comparison with the baseline at the same point; None for the baseline.
    costs: medians over the finished seeds by name, of `COSTS` and further costs; None if unknown. `seconds` is the
      time of all training steps, without compilation, evaluation and checkpoints.
    fronts: for each of `COSTS`, whether the row is on the Pareto front of its point.
    ranks: rank at each seed of `Ranking.ranks`; None without any.
    note: remarks, such as the number of failed seeds; '' without any.
  """

  variant: str
  point: int
  entries: tuple[Entry, ...]
  summary: Summary
  comparison: Comparison | None
  costs: Mapping[str, float | None]
  fronts: Mapping[str, bool]
  ranks: tuple[int, ...] | None
  note: str

  @property
  def verdict(self) -> str:
    """'baseline', or the verdict of the comparison."""
    return 'baseline' if self.comparison is None else self.comparison.verdict

  def without_verdict(self, reason: str) -> 'Row':
    """Returns the row with its verdict withheld for a reason; '' changes nothing."""
    if not reason:
      return self
    comparison = self.comparison and self.comparison.without_verdict(reason)
    note = '; '.join(filter(None, [reason, self.note]))
    return dataclasses.replace(self, comparison=comparison, note=note)

  def count(self, status: str) -> int:
    """Returns the number of trials with this status."""
    return sum(entry.status == status for entry in self.entries)


@dataclasses.dataclass(frozen=True)
class Results:
  """Data of a report.

  Attributes:
    points: points of the grid, in the order of the plan; a single empty point without a grid.
    rows: rows by point, then in the order of the variants.
    rankings: one ranking per point.
    lines: lines of metrics.jsonl by run folder and split, with the seconds from timing.jsonl.
    damaged: one message for each damaged file of a trial.
    level: level of the verdicts.
    judged: part of the plan with verdicts; None before the first verdict.
    looks: recorded looks, oldest first.
    tuning: tuned values of the variants; None without tuning.
    untuned: results at the variants' own values; None without tuning, or before they were planned.
  """

  plan: Plan
  points: Sequence[Mapping[str, Any]]
  entries: Sequence[Entry]
  rows: Sequence[Row]
  rankings: Sequence[Ranking]
  lines: Mapping[Path, RunLines]
  damaged: Sequence[str]
  level: Level = Level()
  judged: Plan | None = None
  looks: Sequence[Look] = ()
  tuning: Tuning | None = None
  untuned: 'Results | None' = None

  @property
  def ended(self) -> int:
    """Number of trials that have ended."""
    return sum(entry.status in ENDED for entry in self.entries)

  @property
  def axes(self) -> list[str]:
    """Names of the axes of the grid."""
    return list(dict.fromkeys(axis for point in self.points for axis in point))

  @property
  def origins(self) -> dict[str, list[str]]:
    """All values of versions, device and commit among the ended trials, by name.

    If no trial has recorded them, they are those of the plan.
    """
    records = [dict(entry.outcome.made_by) for entry in self.entries if entry.outcome]
    if not any(records):
      records = [dict(self.plan.versions) | {'commit': self.plan.commit or 'unknown'}]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: sorted(_values(name, records)) for name in names}

  def warning(self) -> str:
    """Returns a one-line warning if trials have different origins, else ''."""
    mixed = {name: values for name, values in self.origins.items() if len(values) > 1}
    accepted = accepted_trials(self.plan.trials)
    accepted = f'{accepted[0].upper()}{accepted[1:]}.' if accepted else ''
    if not mixed:
      return accepted
    text = '; '.join(f'{name} {", ".join(values)}' for name, values in mixed.items())
    return (
      'Trials differ in versions, device, source code or data, which may affect the results: '
      f'{text}. {accepted}'.rstrip()
    )

  def progress(self) -> str:
    """Returns the progress as text: '37 of 220 trials ended: 30 finished, ...'."""
    counts = dict.fromkeys((*ENDED, 'running', 'waiting'), 0)
    for entry in self.entries:
      counts[entry.status] += 1
    text = ', '.join(f'{count} {status}' for status, count in counts.items() if count)
    return f'{self.ended} of {len(self.entries)} trials ended: {text}'


def _values(name: str, records: Sequence[Mapping[str, str]]) -> set[str]:
  """Returns the values of an origin. The project, modules and data may be missing, others are 'unknown'."""
  optional = name == 'project' or name.startswith(('module ', 'data '))
  return {record.get(name, 'unknown') for record in records if name in record or not optional}


def read_results(folder: Path) -> Results:
  """Reads sweep.json in `folder` and the files of its trials; for a tuned sweep, also its results before tuning.

  Raises:
    UserError: the folder is not a sweep folder, or a file in it cannot be read.
  """
  plan = read_plan(folder)
  if plan.tuning == 'trials':
    result = str(folder).removesuffix('-tune')
    raise UserError(
      f'{folder} has tuning trials, which have no verdicts: `t2x report {result}` reports the tuned sweep'
    )
  looks = read_looks(folder)
  results = dataclasses.replace(_read(folder, plan, looks), looks=looks)
  if plan.tuning != 'tuned':
    return results
  untuned, own = None, folder.with_name(f'{folder.name}-untuned')
  if (own / 'sweep.json').exists():
    untuned = _read(own, read_plan(own), looks, results.level)
  tuning = read_tuning(folder)
  rows = [
    row.without_verdict(
      _choice_problem(row.entries)
      or tuning.problem_of(row.variant, plan.baseline, results.points[row.point])
    )
    for row in results.rows
  ]
  return dataclasses.replace(results, tuning=tuning, untuned=untuned, rows=rows)


def _choice_problem(entries: Sequence[Entry]) -> str:
  """Returns why the noise of the tuned values is unknown; '' if it is known."""
  seeds = {entry.trial.tuned_by for entry in entries}
  if None in seeds:
    return 'one value was tuned for all seeds'
  return f'fewer than {FEWEST_SEEDS} tuning seeds' if len(seeds) < FEWEST_SEEDS else ''


def _read(folder: Path, plan: Plan, looks: Sequence[Look], level: Level | None = None) -> Results:
  """Reads the trials of a plan; `level` is that of the verdicts, if it does not follow from the looks."""
  damaged: list[str] = []
  trials = folder.parent / 'trials'
  entries = [_entry(trials / trial.folder, trial, plan, damaged) for trial in plan.trials]
  # The last lines of an active run may be incomplete.
  lines = {
    entry.folder: run_lines(entry.folder, damaged if entry.status in ENDED else None)
    for entry in entries
    if entry.folder.name
  }
  entries = _add_times(entries, {folder: timing for folder, (_, timing) in lines.items()})
  part = judged(plan, [entry.status in ENDED for entry in entries])
  level = level or (Level() if part is None else level_of(part, looks))
  keys = [*dict.fromkeys(_key(trial.point) for trial in plan.trials)]
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
  # The first variant of each config, or of the configs at its tuned values.
  first: dict[tuple[int, frozenset[str]], str] = {}
  for point, variant in order:
    first.setdefault((point, _identities(cells[point, variant])), variant)
  samples = {cell: _sample(cells[cell], plan.metric) for cell in order}
  if part is None:
    ended = sum(entry.status in ENDED for entry in entries)
    nothing = Comparison(pairs=0).without_verdict(f'{ended} of {len(entries)} trials have ended')
    units, verdicts = samples, {cell: nothing for cell in order if cell[1] != plan.baseline}
  else:
    seeds = {trial.seed for trial in part.trials}
    units = {
      cell: _sample([e for e in cells[cell] if e.trial.seed in seeds], plan.metric, by_choice=True)
      for cell in order
    }
    verdicts = _compare(plan, units, points, level)
  rankings = [
    ranking(
      {variant: samples[at, variant].values for at, variant in order if at == point}, plan.goal
    )
    for point in range(len(points))
  ]
  rows = []
  for (point, variant), sample in samples.items():
    own, verdict = cells[point, variant], verdicts.get((point, variant))
    equal = first[point, _identities(own)]
    name = {variant: '', plan.baseline: 'the baseline'}.get(equal, equal)
    note = _note(verdict, own, name if own[0].trial.identity else '', units[point, variant])
    summary, ranks = summarise(list(sample.values.values())), rankings[point].ranks.get(variant)
    row = Row(variant, point, tuple(own), summary, verdict, _costs(own), {}, ranks, note)
    if verdict is not None:
      sides = (*own, *cells.get((point, plan.baseline), ()))
      row = row.without_verdict(mixed_sources((entry.trial, entry.outcome) for entry in sides))
    rows.append(row)
  rows = _add_fronts(rows, plan)
  curves = {folder: metrics for folder, (metrics, _) in lines.items()}
  damaged = [*dict.fromkeys(damaged)]
  return Results(plan, points, entries, rows, rankings, curves, damaged, level, part)


def _compare(
  plan: Plan,
  samples: Mapping[tuple[int, str], Sample],
  points: Sequence[Mapping[str, Any]],
  level: Level,
) -> dict[tuple[int, str], Comparison]:
  """Compares all variants with the baseline at the same point."""
  planned = [cell for cell in samples if cell[1] != plan.baseline]
  against = [(samples[cell], samples.get((cell[0], plan.baseline), Sample({}))) for cell in planned]
  names = [
    ', '.join([variant, *(f'{axis} = {value}' for axis, value in points[point].items())])
    for point, variant in planned
  ]
  comparisons = compare(against, plan.goal, margin=plan.margin, level=level.alpha, names=names)
  return dict(zip(planned, comparisons, strict=True))


def _entry(folder: Path, trial: Trial, plan: Plan, damaged: list[str]) -> Entry:
  if trial.problem:
    # Its folder may hold a trial of another sweep with the same unmatched config.
    return Entry(trial, Path(), 'failed', trial.problem, None)
  try:
    outcome = read_outcome(folder)
    if outcome is not None and outcome.status == 'finished':
      _check_kind(folder, outcome, plan.metric)
  except Damaged as error:
    damaged.append(f'{error}; `t2x sweep` runs the trial again')
    return Entry(trial, folder, 'failed', str(error), None)
  if outcome is not None:
    return Entry(trial, folder, *judge(plan, outcome), outcome)
  started = any((folder / name).exists() for name in ('log.txt', 'metrics.jsonl'))
  return Entry(trial, folder, 'running' if started else 'waiting', '', None)


def _check_kind(folder: Path, outcome: Outcome, metric: str) -> None:
  """Raises Damaged if the metric of the sweep is not a number."""
  if not isinstance(outcome.metrics.get(metric), int | float | None):
    raise Damaged(f"{folder / 'trial.json'} is damaged: metrics['{metric}'] is not a number")


def _add_times(entries: Sequence[Entry], timing: Mapping[Path, Lines]) -> list[Entry]:
  """Returns the entries with the time per step and the number of concurrent trials."""
  by_folder = {entry.folder: entry.outcome.conditions for entry in entries if entry.outcome}
  conditions = [item for item in by_folder.values() if item is not None]
  result = []
  for entry in entries:
    if (outcome := entry.outcome) is not None:
      seconds, own = outcome.step_seconds, outcome.conditions
      if seconds is None and (of_all := step_seconds(timing.get(entry.folder, ()))):
        # Older versions of trial.json have no `step_seconds`.
        seconds = of_all / outcome.together
      count = None if own is None else at_once(own, conditions)
      entry = dataclasses.replace(entry, step_seconds=seconds, at_once=count)
    result.append(entry)
  return result


def _key(point: Mapping[str, Any]) -> str:
  return json.dumps(point, sort_keys=True)


def _identities(entries: Iterable[Entry]) -> frozenset[str]:
  return frozenset(entry.trial.identity for entry in entries)


def _sample(entries: Iterable[Entry], metric: str, *, by_choice: bool = False) -> Sample:
  """Returns the results by seed, or by the tuning seed that chose their value, as far as there is one."""
  values, examples, diverged = {}, {}, set()
  choices: dict[int, int] = {}
  for entry in entries:
    seed = entry.trial.seed
    choices[seed] = seed if entry.trial.tuned_by is None else entry.trial.tuned_by
    if entry.status == 'diverged':
      diverged.add(seed)
    if (value := entry.value(metric)) is not None:
      values[seed] = value
      if (of_run := read_examples(entry.folder, metric, value)) is not None:
        examples[seed] = of_run
  unit = 'seed'
  if by_choice:
    unit = 'block' if len({*choices.values()}) < len(choices) else 'seed'
    values, diverged, examples = block_means(choices, values, diverged, examples)
  return Sample(values, len(diverged), examples, unit)


def _note(
  comparison: Comparison | None, entries: Sequence[Entry], equal: str, sample: Sample
) -> str:
  """Returns remarks: failed and diverged seeds, seeds without a pair, an equal variant."""
  counts = {status: _seeds(entries, status) for status in ('failed', 'diverged')}
  total = len({entry.trial.seed for entry in entries})
  texts = {s: f'{count} of {total} seeds {s}' for s, count in counts.items() if count}
  if comparison is None:
    return '; '.join(texts.values())
  notes = [texts['failed']] if 'failed' in texts else []
  if equal:
    notes.append(f'same config as {equal}')
  if sample.unit == 'block':
    notes.append(f'{comparison.pairs} blocks of seeds with one tuning seed each')
  elif 0 < comparison.pairs < len(sample.values):
    notes.append(f'{comparison.pairs} {"pair" if comparison.pairs == 1 else "pairs"}')
  return '; '.join([*notes, *([comparison.note] if comparison.note else [])])


def _seeds(entries: Iterable[Entry], status: str) -> int:
  return len({entry.trial.seed for entry in entries if entry.status == status})


def _costs(entries: Sequence[Entry]) -> dict[str, float | None]:
  trial = entries[0].trial
  done = [entry for entry in entries if entry.status == 'finished']
  outcomes = [entry.outcome for entry in done if entry.outcome]
  steps = [entry.step_seconds for entry in done if entry.step_seconds]
  conditions = [outcome.conditions for outcome in outcomes if outcome.conditions]
  compiled = [o.compile_seconds for o in outcomes if o.compile_seconds is not None]
  all_values: dict[str, list[Any]] = {
    'parameters': [trial.parameters or None],
    'flops_per_token': [trial.flops_per_token or None],
    'flops': [
      (trial.flops_per_token * trial.tokens_per_step * entry.num_steps) or None
      for entry in done or entries
    ],
    'seconds': [entry.step_seconds * entry.num_steps for entry in done if entry.step_seconds],
    'memory_bytes': [outcome.memory_bytes for outcome in outcomes],
    'step_seconds': steps,
    # The first seed may compile for all.
    'compile_seconds': [max(compiled)] if compiled else [],
    'tokens_per_second': [outcome.tokens_per_second for outcome in outcomes],
    'load': [(item.load_before + item.load_after) / 2 for item in conditions],
    'at_once': [entry.at_once for entry in done],
  }
  costs = {name: [v for v in values if v is not None] for name, values in all_values.items()}
  medians = {name: float(statistics.median(values)) for name, values in costs.items() if values}
  return {name: m if math.isfinite(m := medians.get(name, math.nan)) else None for name in costs}


def _add_fronts(rows: Sequence[Row], plan: Plan) -> list[Row]:
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
