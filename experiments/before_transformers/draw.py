"""Exact match by length of the source and by number of training examples, and recall by distance.

python experiments/before_transformers/draw.py

Reads results/*/results.csv and writes results/{length,examples,distance}.png (needs the extra `report`).
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / 'results'
# Mean characters of lists of one to four dates of the test split, as in the README.
CHARACTERS = {'1': 14, '2': 30, '3': 47, '4': 63}

Curves = Mapping[str, Mapping[float, Sequence[float]]]


def rows(sweep: str) -> list[dict[str, str]]:
  """Returns the stored results of a sweep."""
  with (RESULTS / sweep / 'results.csv').open() as file:
    return [*csv.DictReader(file)]


def by_evaluation(sweep: str, metric: str, place: Mapping[str, float] | None = None) -> Curves:
  """Returns variant -> place -> values of the seeds, of evaluations that are named by their place."""
  curves: dict[str, dict[float, list[float]]] = {}
  for row in rows(sweep):
    name, _, of = row['metric'].rpartition('/')
    if name and of == metric:
      x = float(place[name] if place else name)
      curves.setdefault(row['variant'], {}).setdefault(x, []).append(float(row['value']))
  return curves


def by_axis(sweep: str, axis: str, metric: str) -> Curves:
  """Returns variant -> value of the axis of the grid -> values of the seeds."""
  curves: dict[str, dict[float, list[float]]] = {}
  for row in rows(sweep):
    if row['metric'] == metric:
      x = float(row[axis])
      curves.setdefault(row['variant'], {}).setdefault(x, []).append(float(row['value']))
  return curves


def panel(axis: Any, curves: Curves, **settings: Any) -> None:
  """Draws the means of the seeds as lines, and every seed as a point."""
  for variant, points in curves.items():
    places = sorted(points)
    [line] = axis.plot(places, [sum(points[x]) / len(points[x]) for x in places], label=variant)
    for x in places:
      axis.plot([x] * len(points[x]), points[x], 'o', ms=4, alpha=0.6, color=line.get_color())
  axis.set(ylim=(-0.03, 1.03), **settings)
  axis.legend()


def main() -> None:
  """Draws the three figures."""
  from matplotlib import pyplot as plt

  figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout='constrained')
  copying, dates = (
    by_evaluation('copying', 'exact_match'),
    by_evaluation('dates', 'exact_match', CHARACTERS),
  )
  panel(axes[0], copying, title='copying', xlabel='letters', ylabel='exact match')
  panel(axes[1], dates, title='lists of dates', xlabel='mean characters of the source')
  figure.savefig(RESULTS / 'length.png', dpi=110)

  figure, axis = plt.subplots(figsize=(5, 3.6), layout='constrained')
  curves = by_axis('examples', 'BabelDates.train_examples', 'test/exact_match')
  panel(axis, curves, xscale='log', xlabel='training examples', ylabel='exact match')
  figure.savefig(RESULTS / 'examples.png', dpi=110)

  figure, axis = plt.subplots(figsize=(5, 3.6), layout='constrained')
  panel(
    axis, by_evaluation('recall', 'accuracy'), xlabel='distance in characters', ylabel='accuracy'
  )
  figure.savefig(RESULTS / 'distance.png', dpi=110)


if __name__ == '__main__':
  main()
