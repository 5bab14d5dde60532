"""Draws the figure of the README from a study: `python docs/flagship.py` writes docs/images/heads.svg."""

import csv
import re
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
STUDY = ROOT / 'experiments/attention_basics/results/heads'


def losses(study: Path = STUDY) -> dict[int, list[float]]:
  """Returns the losses of all seeds by number of heads."""
  values: dict[int, list[float]] = {}
  with (study / 'results.csv').open() as file:
    for row in csv.DictReader(file):
      if row['metric'] == 'loss':
        values.setdefault(int(row['variant'].removeprefix('heads_')), []).append(
          float(row['value'])
        )
  return dict(sorted(values.items()))


def verdicts(study: Path = STUDY) -> dict[int, str]:
  """Returns the verdict of each number of heads, as the report has it."""
  rows = re.findall(r'^\| heads_(\d+) \|(.*)$', (study / 'report.md').read_text(), re.MULTILINE)
  verdict: dict[int, str] = {}
  for heads, cells in rows:
    verdict.setdefault(int(heads), cells.split('|')[2].strip())
  return verdict


def draw(target: Path) -> None:
  """Draws each seed as a point, with means and verdicts."""
  matplotlib.use('agg')
  plt.rcParams.update({'svg.hashsalt': 't2x', 'svg.fonttype': 'path', 'font.size': 9})
  colors = {'baseline': '#24292f', 'helps': '#1a7f37', 'hurts': '#bc4c00'}
  figure, axes = plt.subplots(figsize=(6.4, 2.6), layout='constrained')
  of = verdicts()
  for place, (heads, values) in enumerate(losses().items()):
    color = colors[of[heads]]
    mean = sum(values) / len(values)
    axes.plot([place] * len(values), values, 'o', color=color, alpha=0.35, markersize=5)
    axes.plot([place - 0.2, place + 0.2], [mean] * 2, color=color, linewidth=2)
    axes.annotate(
      of[heads], (place, max(values)), (0, 5), textcoords='offset points', ha='center', color=color
    )
  axes.set_xticks(range(len(of)), [str(heads) for heads in losses()])
  axes.set(xlabel='heads, at equal parameters', ylabel='held-out loss (nats per byte)')
  axes.margins(y=0.2)
  axes.spines[['top', 'right']].set_visible(False)
  figure.savefig(target, metadata={'Date': None})
  plt.close(figure)


if __name__ == '__main__':
  draw(ROOT / 'docs/images/heads.svg')
