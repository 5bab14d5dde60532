"""Draws the test accuracy of a ResNet and of a ViT by the number of training images.

python experiments/architectures/draw.py   # results/images.png; needs the extra report
"""

import collections
import csv
from pathlib import Path

from matplotlib import pyplot

RESULTS = Path(__file__).parent / 'results'
NAMES = {'resnet': 'ResNet', 'vit': 'ViT'}
METRIC = 'test/accuracy'


def accuracies(variant: str) -> dict[int, list[float]]:
  """Returns number of images -> accuracy of each seed; `architectures` has 4,000."""
  found = collections.defaultdict(list)
  for sweep in ('images', 'architectures'):
    with (RESULTS / sweep / 'results.csv').open(newline='') as file:
      for row in csv.DictReader(file):
        if row['metric'] == METRIC and row['variant'] == variant:
          found[int(row.get('num_images') or 4000)].append(float(row['value']))
  return dict(sorted(found.items()))


def main() -> None:
  figure, axes = pyplot.subplots(figsize=(5, 3.2), layout='constrained')
  for variant, name in NAMES.items():
    points = accuracies(variant)
    line = axes.plot([*points], [sum(v) / len(v) for v in points.values()], marker='o', label=name)
    for number, values in points.items():
      axes.scatter([number] * len(values), values, s=8, color=line[0].get_color())
  axes.set(xscale='log', xlabel='training images', ylabel='accuracy of 10,000 test images')
  axes.set_xticks([*points], [f'{number:,}' for number in points])
  axes.minorticks_off()
  axes.legend()
  figure.savefig(RESULTS / 'images.png', dpi=120)


if __name__ == '__main__':
  main()
