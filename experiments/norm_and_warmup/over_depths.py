"""Differences of the wirings of deep.gin from pre-norm over all depths, and failures of post-norm.

python experiments/norm_and_warmup/over_depths.py experiments/norm_and_warmup/results/deep/results.csv

Prints a table in Markdown: mean losses by depth, and for wirings that learn in all trials the mean of the differences
at equal depth and seed, with 95 % intervals for all of these wirings together (paired t, Bonferroni). This analysis was
chosen after the results were known. The last line compares failures at 12 and more layers by Barnard's test.
"""

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.append(str(Path(__file__).parents[1] / 'statistics'))
from recorded import read_points

FAILED_ABOVE = 3.05  # Sweep.failed_above of deep.gin.
BASELINE = 'pre_norm'
# Depths at which post-norm failed.
DEEP = 12


def pooled(differences: list[float], comparisons: int) -> str:
  """Returns the mean of the differences, its interval and the corrected p as text."""
  result = stats.ttest_1samp(differences, 0.0)
  low, high = result.confidence_interval(1 - 0.05 / comparisons)
  p = min(1.0, float(result.pvalue) * comparisons)
  return f'{np.mean(differences):+.3f} ({low:+.3f} to {high:+.3f}), p {p:.4f}'


def main() -> None:
  """Prints the table and the comparison of failures."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('results', type=Path)
  args = parser.parse_args()
  points = read_points(args.results, 'loss', FAILED_ABOVE)
  depths = sorted(points, key=lambda point: int(point[0]))
  wirings = [*points[depths[0]]]
  complete = [w for w in wirings if not any(points[depth][w].diverged for depth in depths)]
  print(f'| wiring | {" | ".join(depth for (depth,) in depths)} | over all depths |')
  print('|---' * (len(depths) + 2) + '|')
  for wiring in wirings:
    samples = [points[depth][wiring] for depth in depths]
    cells = [
      f'{statistics.mean(s.values.values()):.3f}' if s.values else f'{s.diverged} failed'
      for s in samples
    ]
    differences = [
      value - points[depth][BASELINE].values[seed]
      for depth, sample in zip(depths, samples, strict=True)
      for seed, value in sample.values.items()
    ]
    is_compared = wiring in complete and wiring != BASELINE
    last = pooled(differences, len(complete) - 1) if is_compared else ''
    print(f'| `{wiring}` | {" | ".join(cells)} | {last} |')
  counts = []
  for wiring in ('post_norm', BASELINE):
    samples = [points[depth][wiring] for depth in depths if int(depth[0]) >= DEEP]
    counts.append([sum(s.diverged for s in samples), sum(len(s.values) for s in samples)])
  print(f'failed and learned: post_norm {counts[0]}, {BASELINE} {counts[1]}; ', end='')
  print(f'p {stats.barnard_exact(counts).pvalue:.1e}')


if __name__ == '__main__':
  main()
