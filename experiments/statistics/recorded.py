"""Applies the statistics of sweeps to a results.csv without its run folders.

python experiments/statistics/recorded.py experiments/narang2021/results/tiny_steps/results.csv vanilla
"""

import argparse
import csv
from pathlib import Path

from t2x.sweeps.comparisons import Sample, compare


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('results', type=Path)
  parser.add_argument('baseline')
  parser.add_argument('--metric', default='loss')
  parser.add_argument('--margin', type=float)
  args = parser.parse_args()
  values: dict[str, dict[int, float]] = {}
  diverged: dict[str, int] = {}
  for row in csv.DictReader(args.results.open()):
    variant = row['variant']
    values.setdefault(variant, {})
    if row['status'] == 'diverged':
      diverged[variant] = diverged.get(variant, 0) + 1
    elif row['metric'] == args.metric:
      values[variant][int(row['seed'])] = float(row['value'])
  samples = {name: Sample(seeds, diverged.get(name, 0)) for name, seeds in values.items()}
  baseline = samples.pop(args.baseline)
  found = compare([(sample, baseline) for sample in samples.values()], 'min', margin=args.margin)
  rows = sorted(zip(samples, found, strict=True), key=lambda row: row[1].p_corrected or 1)
  for name, one in rows:
    if one.verdict != 'inconclusive':
      print(
        f'{name}: {one.difference:+.3f} ({one.low:+.3f} to {one.high:+.3f}), {one.verdict}, '
        f'p {one.p_corrected:.4f}, paired with Holm {one.p_paired:.3f}'
      )
  counts = [one.verdict for one in found]
  print(', '.join(f'{counts.count(verdict)} {verdict}' for verdict in sorted({*counts})))


if __name__ == '__main__':
  main()
