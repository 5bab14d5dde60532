"""Held-out loss of a run by the number of heads left, in the order of importance and in random orders.

  python experiments/head_pruning/curve.py RUN --out FOLDER

Heads are masked, which equals their removal; nothing is trained again. Writes curve.csv and curve.png.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np

import t2x
from t2x.prune.heads import remaining, removal_order, scaled
from t2x.prune.pruning import score_heads


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('run', help='run folder')
  parser.add_argument('--out', type=Path, required=True, help='output folder')
  parser.add_argument(
    '--rows', type=int, default=1024, help='rows of the train split for the importance'
  )
  parser.add_argument('--seeds', type=int, default=5, help='number of random orders')
  parser.add_argument('--step', type=int, default=1, help='heads between two points of the curve')
  parser.add_argument('--eval-rows', type=int, help='rows of the evaluation split (default: all)')
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  start = time.monotonic()
  run = t2x.load(args.run)
  ranking = score_heads(run, num_rows=args.rows)
  blueprint = run.inference.program.blueprint
  params = blueprint.params(run.model.model)

  def loss(removed):
    masked = scaled(params, ranking.heads, remaining(ranking.heads, removed))
    return run.inference.evaluation(masked, run.task.eval_split, num_rows=args.eval_rows).metrics[
      'loss'
    ]

  orders = {'importance': removal_order(ranking.scores)}
  orders['reverse'] = removal_order({name: -scores for name, scores in ranking.scores.items()})
  for seed in range(args.seeds):
    rng = np.random.default_rng(seed)
    scores = {sublayer.name: rng.random(sublayer.shape) for sublayer in ranking.heads}
    orders[f'random {seed}'] = removal_order(scores)
  rows = []
  for name, order in orders.items():
    for count in range(0, len(order) + 1, args.step):
      heads = ranking.size - count * ranking.heads[0].group_size
      rows.append({'order': name, 'heads': heads, 'loss': loss(order[:count])})
    print(f'{name}: {rows[-1]["loss"]:.4f} with {rows[-1]["heads"]} heads', flush=True)
  with (args.out / 'curve.csv').open('w', newline='') as file:
    writer = csv.DictWriter(file, ['order', 'heads', 'loss'])
    writer.writeheader()
    writer.writerows(row | {'loss': f'{row["loss"]:.5f}'} for row in rows)
  draw(rows, args.out / 'curve.png')
  print(ranking.table(remaining(ranking.heads, orders['importance'][: ranking.size // 2])))
  print(f'{ranking.num_rows:,} rows; {time.monotonic() - start:.0f} s; wrote {args.out}')


def draw(rows, path):
  import matplotlib

  matplotlib.use('Agg')
  import matplotlib.pyplot as plt

  figure, axes = plt.subplots(figsize=(6, 4), layout='constrained')
  styles = {
    'importance': {'color': '#0b6e4f', 'label': 'least important first', 'marker': 'o'},
    'reverse': {'color': '#b3541e', 'label': 'most important first', 'marker': 's'},
  }
  for name in dict.fromkeys(row['order'] for row in rows):
    points = [(row['heads'], row['loss']) for row in rows if row['order'] == name]
    label = 'random orders' if name == 'random 0' else None
    style = styles.get(name, {'color': '#8a8f98', 'label': label, 'linewidth': 0.9, 'zorder': 1})
    axes.plot(*zip(*points, strict=True), **{'markersize': 3, 'zorder': 2} | style)
  axes.invert_xaxis()
  axes.set(xlabel='heads left', ylabel='held-out loss (nats per masked token)')
  axes.legend(frameon=False)
  figure.savefig(path, dpi=150)


if __name__ == '__main__':
  main()
