"""Draws the figure of docs/referee.md from results/equal_groups.json and results/gate.json.

python -m experiments.referee.draw   # writes docs/images/lies.png
"""

import json
from pathlib import Path

from t2x.base.drawing import COLORS, drawn

FOLDER = Path(__file__).parent
OUT = FOLDER.parents[1] / 'docs' / 'images' / 'lies.png'
LABELS = {'referee': 't2x referee', 'p < 0.25': 'better mean and p < 0.25'}


def main() -> None:
  """Draws the false verdicts of equal groups, and the false passes of a search."""
  rates = json.loads((FOLDER / 'results' / 'equal_groups.json').read_text())['rates']
  searches = [
    row for row in json.loads((FOLDER / 'results' / 'gate.json').read_text()) if 'with_any' in row
  ]
  with drawn([OUT], 7.2, 2.9) as figure:
    left, right = figure.subplots(1, 2)
    for index, (rule, label) in enumerate(LABELS.items()):
      rows = [row for row in rates if row['rule'] == rule]
      x = [row['runs'] + 0.15 * (2 * index - 1) for row in rows]
      y = [100 * row['rate'] for row in rows]
      ends = [
        [100 * (row['rate'] - row['low']) for row in rows],
        [100 * (row['high'] - row['rate']) for row in rows],
      ]
      left.errorbar(x, y, ends, fmt='o', markersize=3, color=COLORS[index], capsize=2, label=label)
    left.axhline(5, color='black', linewidth=0.7, linestyle=':')
    left.set(
      xlabel='runs of each side', ylabel='false verdicts (%)', xticks=[3, 5, 8, 10], ylim=(0, 30)
    )
    left.set_title('Equal runs of GPT-2 124M, split in two')
    left.legend(loc='center right')
    for index, (kind, label) in enumerate(
      (('with', 'with t2x gate'), ('without', 'test of the screening seeds'))
    ):
      places = [number + 0.36 * (index - 0.5) for number in range(2 * len(searches))]
      values = [100 * row[f'{kind}_{what}'] for row in searches for what in ('first', 'any')]
      bars = right.bar(places, values, 0.34, color=COLORS[index], label=label)
      right.bar_label(bars, fmt='%.0f', fontsize=7)
    right.axhline(5, color='black', linewidth=0.7, linestyle=':')
    names = [
      f'{row["screening_seeds"]} seeds,\n{what}'
      for row in searches
      for what in ('1 round', '10 rounds')
    ]
    right.set_xticks(range(len(names)), names)
    right.set(ylabel='something false passes (%)', ylim=(0, 108))
    right.set_title('A search keeps the best of 100 equal variants')
    right.legend(loc='upper left')


if __name__ == '__main__':
  main()
