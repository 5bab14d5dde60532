"""Judges a table of results: the verdict on each variant, the noise floor, the power and the gain of pairing."""

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np

from t2x.base.errors import UserError
from t2x.base.suggestions import did_you_mean
from t2x.statistics.comparisons import Comparison, Sample, compare
from t2x.statistics.power import paired_power
from t2x.statistics.summaries import ALPHA, Goal, Summary, summarise
from t2x.statistics.table import Columns, Failed, Table, without_failed
from t2x.statistics.two_way import FEWEST, paired

# Recommended number of seeds.
SEEDS = 5
FEWEST_RUNS = 2
# Effects of the table of power, in standard deviations of a run.
EFFECTS = (1.0, 2.0, 3.0)
# The runs (variant, size, seed) [runs, 3], their means [runs], and the items and scores of each; [] without items.
_Runs = tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """A variant at a size.

  Attributes:
    size: name of the size; '' without sizes.
    summary: mean, deviation and interval over its runs.
    comparison: comparison with the baseline at the same size; None for the baseline.
    p_plain: p-value of the plain paired t test, without correction; None without an estimate of the noise.
    gain: variance of the difference of unpaired runs, relative to that of the pairs: the factor by which pairing
      reduces the number of runs; None without pairs.
  """

  variant: str
  size: str
  sample: Sample
  summary: Summary
  comparison: Comparison | None
  p_plain: float | None = None
  gain: float | None = None

  @property
  def verdict(self) -> str:
    """The verdict, or 'baseline'."""
    return self.comparison.verdict if self.comparison else 'baseline'


@dataclasses.dataclass(frozen=True)
class SignalToNoise:
  """Differences between variants relative to the noise of runs, for one metric.

  Attributes:
    signal: standard deviation of the means of the variants, without the part that the noise contributes.
    noise: standard deviation of the runs of a variant.
  """

  metric: str
  signal: float
  noise: float

  @property
  def ratio(self) -> float | None:
    """Signal to noise; None without noise."""
    return self.signal / self.noise if self.noise else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ruling:
  """Verdicts on all variants of a table.

  Attributes:
    unit: what is paired: 'seed', 'item' (one run each, many items), or 'run' (runs without seeds, paired by number).
    floor: half the median width of the intervals: smaller differences can be luck; None without intervals.
    noise: standard deviation of the runs of a variant, pooled over all variants; None with one run each.
    signals: signal to noise of each metric.
    uncorrected: what the verdicts are not corrected for.
  """

  table: str
  metric: str
  goal: Goal
  baseline: str
  margin: float | None
  level: float
  unit: str
  rows: Sequence[Row]
  floor: float | None
  noise: float | None
  signals: Sequence[SignalToNoise]
  uncorrected: Sequence[str]

  @property
  def compared(self) -> list[tuple[Row, Comparison]]:
    """Rows of variants, with their comparisons."""
    return [(row, row.comparison) for row in self.rows if row.comparison is not None]

  @property
  def seeds(self) -> int:
    """Median number of pairs."""
    return int(np.median([comparison.pairs for _, comparison in self.compared]))

  def power(self) -> list[tuple[int, list[float]]]:
    """Returns the power of a comparison for effects of `EFFECTS`, with several numbers of seeds."""
    return [(n, [paired_power(e, n, self.level) for e in EFFECTS]) for n in (3, SEEDS, 8, 10)]


def judge(
  table: Table,
  columns: Columns,
  baseline: str,
  goal: Goal,
  *,
  margin: float | None = None,
  failed: Failed = 'refuse',
  level: float = ALPHA,
) -> Ruling:
  """Compares all variants of a table with the baseline at each size, with a joint correction.

  Args:
    table: the table.
    columns: its columns; the first metric has the verdicts.
    baseline: name of the baseline.
    goal: whether a lower or a higher metric is better.
    margin: largest negligible difference; None: 'same' is not tested.
    failed: treatment of runs whose metric is not finite (see `without_failed`).
    level: probability of any wrong 'helps' or 'hurts'.

  Raises:
    UserError: the baseline is unknown, a variant has a single run, or a run failed.
  """
  if baseline not in table.names:
    raise UserError(
      f"{table.where} has no variant '{baseline}'{did_you_mean(baseline, table.names)}"
    )
  metric = columns.metrics[0]
  finished, lost = without_failed(table, metric, failed)
  runs = _runs(finished, metric)
  samples, unit = _samples(finished, runs, lost, bool(columns.seed))
  _check_sizes(table, samples, baseline)
  planned = [cell for cell in samples if cell[1] != baseline]
  if not planned:
    raise UserError(f"{table.where} has only the variant '{baseline}': nothing to compare it with")
  sides = [(samples[cell], samples[cell[0], baseline]) for cell in planned]
  names = [', '.join(filter(None, [variant, size])) for size, variant in planned]
  verdicts = dict(
    zip(planned, compare(sides, goal, margin=margin, level=level, names=names), strict=True)
  )
  rows = [
    _row(cell, sample, samples[cell[0], baseline], verdicts.get(cell))
    for cell, sample in samples.items()
  ]
  widths = [c.high - c.low for c in verdicts.values() if c.low is not None and c.high is not None]
  return Ruling(
    table=table.where,
    metric=metric,
    goal=goal,
    baseline=baseline,
    margin=margin,
    level=level,
    unit=unit,
    rows=rows,
    floor=float(np.median(widths)) / 2 if widths else None,
    noise=None
    if unit == 'item'
    else _pooled([np.array([*s.values.values()]) for s in samples.values() if s.values]),
    signals=[
      _signal(metric, runs),
      *(
        _signal(name, _runs(without_failed(table, name, 'drop')[0], name))
        for name in columns.metrics[1:]
      ),
    ],
    uncorrected=_uncorrected(table, columns, failed, unit),
  )


def _samples(
  table: Table, results: _Runs, lost: np.ndarray, has_seeds: bool
) -> tuple[dict[tuple[str, str], Sample], str]:
  """Returns the results by (size, variant), and what is paired."""
  runs, values, examples = results
  counts: dict[tuple[str, str], int] = {}
  for variant, at, _ in lost:
    cell = table.sizes[at], table.names[variant]
    counts[cell] = counts.get(cell, 0) + 1
  members: dict[tuple[str, str], list[int]] = {cell: [] for cell in counts}
  for index, (variant, at, _) in enumerate(runs):
    members.setdefault((table.sizes[at], table.names[variant]), []).append(index)
  order = sorted(members, key=lambda cell: (table.sizes.index(cell[0]), table.names.index(cell[1])))
  by_item = bool(examples) and all(len(of_cell) == 1 for of_cell in members.values())
  samples = {}
  for cell in order:
    own = members[cell]
    if by_item:
      items, scores = examples[own[0]]
      sample = Sample(dict(zip(items.tolist(), scores.tolist(), strict=True)), unit='item')
    else:
      sample = Sample(
        {int(runs[i, 2]): float(values[i]) for i in own},
        counts.get(cell, 0),
        _same_items([(int(runs[i, 2]), examples[i]) for i in own] if examples else []),
        'seed' if has_seeds else 'run',
      )
    if len(sample.values) + sample.diverged < FEWEST_RUNS:
      row = int(table.lines[_first(table, cell)])
      name = ' at size '.join(filter(None, [f"'{cell[1]}'", cell[0]]))
      raise UserError(
        f'{table.where}, row {row}: variant {name} has a single run, which gives no estimate of the noise: add '
        f'seeds ({SEEDS} are recommended), or select the other variants with --only'
      )
    samples[cell] = sample
  return samples, 'item' if by_item else 'seed' if has_seeds else 'run'


def _first(table: Table, cell: tuple[str, str]) -> int:
  size, variant = cell
  match = (table.at == table.sizes.index(size)) & (table.variants == table.names.index(variant))
  return int(np.argmax(match))


def _runs(table: Table, metric: str) -> _Runs:
  keys, flat = table.run_keys()
  order = np.lexsort([np.zeros_like(flat) if table.items is None else table.items, flat])
  _, starts = np.unique(flat[order], return_index=True)
  scores = table.metrics[metric][order]
  ends = np.append(starts[1:], len(flat))
  means = np.array([scores[i:j].mean() for i, j in zip(starts, ends, strict=True)])
  runs = keys[order][starts]
  if table.items is None:
    return runs, means, []
  items = table.items[order]
  return runs, means, [(items[i:j], scores[i:j]) for i, j in zip(starts, ends, strict=True)]


def _same_items(
  runs: Sequence[tuple[int, tuple[np.ndarray, np.ndarray]]],
) -> dict[int, np.ndarray]:
  """Returns the scores of each item by seed; {} unless all runs have the same items."""
  if not runs or any(not np.array_equal(items, runs[0][1][0]) for _, (items, _) in runs):
    return {}
  return {seed: scores for seed, (_, scores) in runs}


def _check_sizes(table: Table, samples: Collection[tuple[str, str]], baseline: str) -> None:
  for size, variant in samples:
    if (size, baseline) not in samples:
      raise UserError(
        f"{table.where}: variant '{variant}' has size '{size}', but the baseline '{baseline}' has not: add its runs "
        'at this size'
      )


def _row(
  cell: tuple[str, str], sample: Sample, baseline: Sample, comparison: Comparison | None
) -> Row:
  size, variant = cell
  row = Row(
    variant=variant,
    size=size,
    sample=sample,
    summary=summarise([*sample.values.values()]),
    comparison=comparison,
  )
  seeds = [seed for seed in sample.values if seed in baseline.values]
  if comparison is None or len(seeds) < FEWEST_RUNS:
    return row
  values = np.array([[side.values[seed] for seed in seeds] for side in (baseline, sample)])
  test = paired(values)
  deviation = float(test.deviation[0])
  if not deviation:
    return row
  unpaired = float(values.var(axis=1, ddof=1).sum())
  return dataclasses.replace(row, p_plain=float(test.p[0]), gain=unpaired / deviation**2)


def _pooled(groups: Sequence[np.ndarray]) -> float | None:
  """Returns the standard deviation within groups; None without a group of two values."""
  freedom = sum(len(group) - 1 for group in groups)
  squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
  return math.sqrt(squares / freedom) if freedom else None


def _signal(metric: str, results: _Runs) -> SignalToNoise:
  """Measures the signal and the noise of a metric at the last size, over the runs that finished."""
  runs, values, _ = results
  last = runs[:, 1] == runs[:, 1].max()
  groups = [values[last & (runs[:, 0] == variant)] for variant in np.unique(runs[last, 0])]
  noise = _pooled(groups) or 0.0
  variance = np.var([group.mean() for group in groups], ddof=1) if len(groups) > 1 else 0.0
  of_noise = noise**2 * float(np.mean([1 / len(group) for group in groups]))
  return SignalToNoise(metric, math.sqrt(max(0.0, float(variance) - of_noise)), noise)


def _uncorrected(table: Table, columns: Columns, failed: Failed, unit: str) -> list[str]:
  """Lists what a table cannot show, and what therefore may make its verdicts too optimistic."""
  notes = [
    'variants, metrics and seeds that were tried and are not in the table',
    'earlier looks at these runs, and seeds added because of them',
    'hyperparameters tuned on these runs, or tuned more for one variant',
  ]
  if unit == 'item':
    notes.append(
      'the noise of training: one run per variant, so verdicts are about these models, not the methods'
    )
  elif table.items is None:
    notes.append('the noise of the evaluated examples (--item)')
  if unit == 'run':
    notes.append(
      'pairing: the table has no seeds, so runs are paired by their number, which is valid but less precise'
    )
  if failed == 'drop':
    notes.append('failed runs, which --failed drop ignores')
  if len(columns.metrics) > 1:
    notes.append(f'the choice of {columns.metrics[0]} among {len(columns.metrics)} metrics')
  return notes


def test_name(ruling: Ruling) -> str:
  """Returns the name of the test of the verdicts."""
  sizes: dict[str, int] = {}
  for row, _ in ruling.compared:
    sizes[row.size] = sizes.get(row.size, 0) + 1
  return 'two-way model' if max(sizes.values()) >= FEWEST else 'paired t tests'
