"""Held-out loss by learning rate and width, with the standard parametrization and with muP.

python experiments/mup/plot.py

Reads results/sweep/results.csv and writes results/rates.png (needs the extra `report`).
"""

import csv
from pathlib import Path

RESULTS = Path(__file__).parent / 'results'
WIDTHS = (64, 128, 256, 512)
# At the width of the base both are the same.
TITLES = {'sp': 'standard', 'mup': 'muP, base of width 256'}


def main() -> None:
  """Draws both panels."""
  from matplotlib import pyplot as plt

  losses: dict[tuple[str, float], float] = {}
  for row in csv.DictReader((RESULTS / 'sweep/results.csv').open()):
    if row['metric'] == 'loss':
      losses[row['variant'], float(row['Cosine.peak'])] = float(row['value'])
  figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout='constrained')
  for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
    for i, width in enumerate(WIDTHS):
      variant = 'sp256' if width == 256 else f'{name}{width}'
      points = sorted((rate, loss) for (v, rate), loss in losses.items() if v == variant)
      color = plt.colormaps['viridis'](i / len(WIDTHS))
      axis.plot(*zip(*points, strict=True), marker='o', color=color, label=f'width {width}')
      axis.plot(*min(points, key=lambda point: point[1]), marker='*', markersize=14, color=color)
    axis.set(xscale='log', xlabel='peak learning rate', title=title)
    rates = sorted({rate for _, rate in losses})
    axis.set_xticks(rates, [f'{rate:g}' for rate in rates])
    axis.minorticks_off()
  axes[0].set_ylabel('held-out loss (nats per byte)')
  axes[1].legend()
  figure.savefig(RESULTS / 'rates.png', dpi=110)


if __name__ == '__main__':
  main()
