"""Draws the test accuracy of a linear probe and of fine-tuning by the number of labels.

python experiments/few_labels/draw.py   # results/labels.png; needs the extra report
"""

import csv
from pathlib import Path

from matplotlib import pyplot

RESULTS = Path(__file__).parent / 'results'
NAMES = {'tuned': 'fine-tuned', 'probe': 'linear probe'}
METRIC = 'test/accuracy'


def accuracies(variant: str) -> dict[int, list[float]]:
  """Returns number of labels -> accuracy of each seed."""
  found = {}
  for path in RESULTS.glob('labels_*/results.csv'):
    with path.open(newline='') as file:
      rows = [row for row in csv.DictReader(file) if row['metric'] == METRIC]
    number = int(path.parent.name.removeprefix('labels_'))
    found[number] = [float(row['value']) for row in rows if row['variant'] == variant]
  return dict(sorted(found.items()))


def main() -> None:
  figure, axes = pyplot.subplots(figsize=(5, 3.2), layout='constrained')
  for variant, name in NAMES.items():
    points = accuracies(variant)
    line = axes.plot([*points], [sum(v) / len(v) for v in points.values()], marker='o', label=name)
    for number, values in points.items():
      axes.scatter([number] * len(values), values, s=8, color=line[0].get_color())
  axes.set(xscale='log', xlabel='labels', ylabel='accuracy of 400 test snippets')
  axes.set_xticks([*points], [f'{number:,}' for number in points])
  axes.minorticks_off()
  axes.legend()
  figure.savefig(RESULTS / 'labels.png', dpi=120)


if __name__ == '__main__':
  main()
