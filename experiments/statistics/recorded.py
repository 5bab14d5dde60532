"""Applies the statistics of sweeps to a results.csv without its run folders.

python experiments/statistics/recorded.py experiments/narang2021/results/tiny_steps/results.csv vanilla
python experiments/statistics/recorded.py RESULTS.csv BASELINE ... > verdicts.txt   # read by experiments/verdicts.py

Verdicts on tuned variants are withheld unless the table has the tuning seed that chose each value. The noise of the
evaluated examples is not in the table.

Detectable: the true difference that the test of a comparison finds with a power of 0.8, given the estimated noise and
the correction for all comparisons. It describes the sweep before its result is known, and not the found difference.
"""

import argparse
import csv
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy import stats

from t2x.statistics.comparisons import POWER, Comparison, Sample, compare
from t2x.statistics.differences import block_means
from t2x.statistics.summaries import ALPHA
from t2x.statistics.two_way import contrasts, single_level
from t2x.sweeps.plan_table import withheld
from t2x.sweeps.tune import read_tuning

# Values of the grid -> variant -> results of the seeds.
Points = Mapping[tuple[str, ...], Mapping[str, Sample]]


def read_points(path: Path, metric: str, failed_above: float, failed_below: float) -> Points:
  """Reads the samples of all variants at all points of the grid; of tuned ones, the means by tuning seed.

  Args:
    path: a results.csv.
    metric: the compared metric.
    failed_above: seeds with a larger value count as diverged (`Sweep.failed_above`).
    failed_below: seeds with a smaller value count as diverged (`Sweep.failed_below`).
  """
  rows = [*csv.DictReader(path.open())]
  axes = [*rows[0]][2 : [*rows[0]].index('seed')]
  values: dict[tuple[str, ...], dict[str, dict[int, float]]] = {}
  diverged: dict[tuple[str, ...], dict[str, set[int]]] = {}
  choices: dict[tuple[str, ...], dict[str, dict[int, int]]] = {}
  for row in rows:
    point, variant, seed = tuple(row[axis] for axis in axes), row['variant'], int(row['seed'])
    chosen = int(row.get('tuned_by') or seed)
    choices.setdefault(point, {}).setdefault(variant, {})[seed] = chosen
    seeds = values.setdefault(point, {}).setdefault(variant, {})
    of_point = diverged.setdefault(point, {}).setdefault(variant, set())
    if row['status'] == 'diverged':
      of_point.add(seed)
    elif row['metric'] == metric:
      value = float(row['value'])
      if value > failed_above or value < failed_below:
        of_point.add(seed)
      else:
        seeds[seed] = value
  points: dict[tuple[str, ...], dict[str, Sample]] = {}
  for point, variants in values.items():
    for name, seeds in variants.items():
      means, lost, _ = block_means(choices[point][name], seeds, diverged[point][name], {})
      points.setdefault(point, {})[name] = Sample(means, len(lost))
  return points


def detectable(
  points: Points, baseline: str, level: float
) -> dict[tuple[tuple[str, ...], str], float]:
  """Returns the detectable difference of each variant at each point that has at least two seeds."""
  cells, errors, freedoms, shared, groups = [], [], [], [], []
  for number, (point, variants) in enumerate(points.items()):
    base = variants[baseline].values
    names = [
      name
      for name, sample in variants.items()
      if name != baseline and len(sample.values.keys() & base.keys()) > 1
    ]
    if not names:
      continue
    seeds = sorted(set().union(base, *(variants[name].values for name in names)))
    samples = [base, *(variants[name].values for name in names)]
    values = np.array([[s.get(seed, np.nan) for seed in seeds] for s in samples])
    chosen, _ = contrasts(values, len(variants) - 1)
    cells += [(point, name) for name in names]
    errors += [*chosen.error]
    freedoms += [*chosen.freedom]
    shared += [*chosen.shared]
    groups += [number] * len(names)
  if not cells:
    return {}
  single = float(single_level(np.array(shared), level, np.array(groups)))
  return {
    cell: error * float(stats.t.isf(single / 2, freedom) + stats.t.ppf(POWER, freedom))
    for cell, error, freedom in zip(cells, errors, freedoms, strict=True)
  }


def describe(name: str, comparison: Comparison, size: float | None) -> str:
  """Formats a comparison as a line."""
  parts = [f'{name}: {comparison.verdict}']
  if comparison.difference is not None and comparison.low is not None:
    parts.append(f'{comparison.difference:+.4f} ({comparison.interval_text("+.4f")})')
  if comparison.p_corrected is not None:
    parts.append(f'p {comparison.p_corrected:.4f}')
  if comparison.p_other is not None:
    parts.append(f'other test {comparison.p_other:.4f}')
  parts += [f'detectable {size:.4f}'] if size is not None else []
  parts += [f'withheld: {comparison.withheld}'] if comparison.withheld else []
  return ', '.join([*parts, *([comparison.note] if comparison.note else [])])


def _one_value(path: Path) -> str:
  """Returns that one value was tuned for all seeds, as older versions did; '' if it was not."""
  with path.open() as file:
    row = next(csv.DictReader(file))
  return 'one value was tuned for all seeds' if 'tuned' in row and not row.get('tuned_by') else ''


def main() -> None:
  """Prints the comparisons, those with the smallest p-values first, and the number of each verdict."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('results', type=Path)
  parser.add_argument('baseline')
  parser.add_argument('--metric', default='loss')
  parser.add_argument('--goal', default='min', choices=('min', 'max'))
  parser.add_argument('--margin', type=float)
  parser.add_argument('--failed-above', type=float, default=math.inf)
  parser.add_argument('--failed-below', type=float, default=-math.inf)
  parser.add_argument('--level', type=float, default=ALPHA, help='of all comparisons together')
  parser.add_argument('--withheld', help='reason why no comparison has a verdict')
  args = parser.parse_args()
  points = read_points(args.results, args.metric, args.failed_above, args.failed_below)
  sizes = detectable(points, args.baseline, args.level)
  cells = [
    (p, name) for p, variants in points.items() for name in variants if name != args.baseline
  ]
  planned = [(points[point][name], points[point][args.baseline]) for point, name in cells]
  names = [' '.join([name, *point]) for point, name in cells]
  comparisons = compare(planned, args.goal, margin=args.margin, level=args.level, names=names)
  if reason := args.withheld or _one_value(args.results):
    comparisons = [comparison.without_verdict(reason) for comparison in comparisons]
  rows = sorted(
    zip(cells, comparisons, strict=True),
    key=lambda row: 1 if row[1].p_corrected is None else row[1].p_corrected,
  )
  for cell, comparison in rows:
    print(describe(' '.join([cell[1], *cell[0]]), comparison, sizes.get(cell)))
  verdicts = [comparison.verdict for comparison in comparisons]
  print(', '.join(f'{verdicts.count(verdict)} {verdict}' for verdict in sorted({*verdicts})))
  if args.results.with_name('tuning.json').exists():
    print(withheld(read_tuning(args.results.parent)), end='')
  if sizes:
    low, middle, high = np.quantile([*sizes.values()], [0, 0.5, 1])
    print(f'detectable: {low:.4f} to {high:.4f}, median {middle:.4f}')


if __name__ == '__main__':
  main()
