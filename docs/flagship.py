"""Draws the figure of the README from a study: `python -m docs.flagship` writes docs/images/mask_rate.svg."""

import csv
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from experiments.verdicts import read_report

ROOT = Path(__file__).parents[1]
STUDY = ROOT / 'experiments/attention_basics/results/mask_rate'
METRIC = 'at_15/loss'


def losses(study: Path = STUDY) -> dict[int, list[float]]:
  """Returns the losses of all seeds by mask rate of training, in percent."""
  values: dict[int, list[float]] = {}
  with (study / 'results.csv').open() as file:
    for row in csv.DictReader(file):
      if row['metric'] == METRIC:
        values.setdefault(int(row['variant'].removeprefix('rate_')), []).append(float(row['value']))
  return dict(sorted(values.items()))


def verdicts(study: Path = STUDY) -> dict[int, str]:
  """Returns the verdict of the report for each mask rate."""
  report = read_report(study / 'report.md')
  rates = {int(c.variant.removeprefix('rate_')): c.verdict for c in report.comparisons}
  return {int(report.baseline.removeprefix('rate_')): 'baseline'} | rates


def draw(target: Path) -> None:
  """Draws each seed as a point, with means and verdicts."""
  matplotlib.use('agg')
  plt.rcParams.update({'svg.hashsalt': 't2x', 'svg.fonttype': 'path', 'font.size': 9})
  colors = {'baseline': '#24292f', 'helps': '#1a7f37', 'hurts': '#bc4c00'}
  figure, axes = plt.subplots(figsize=(6.4, 2.6), layout='constrained')
  of = verdicts()
  for place, (rate, values) in enumerate(losses().items()):
    color = colors[of[rate]]
    mean = sum(values) / len(values)
    axes.plot([place] * len(values), values, 'o', color=color, alpha=0.35, markersize=5)
    axes.plot([place - 0.2, place + 0.2], [mean] * 2, color=color, linewidth=2)
    axes.annotate(
      of[rate], (place, max(values)), (0, 5), textcoords='offset points', ha='center', color=color
    )
  axes.set_xticks(range(len(of)), [f'{rate} %' for rate in losses()])
  axes.set(xlabel='bytes masked in training', ylabel='loss with 15 % masked\n(nats per byte)')
  axes.margins(y=0.2)
  axes.spines[['top', 'right']].set_visible(False)
  figure.savefig(target, metadata={'Date': None})
  plt.close(figure)


if __name__ == '__main__':
  draw(ROOT / 'docs/images/mask_rate.svg')
