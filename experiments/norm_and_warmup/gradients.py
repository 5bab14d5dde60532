"""Gradient norm per layer at initialisation, for pre-norm and post-norm models of several depths.

    python experiments/norm_and_warmup/gradients.py

As Xiong et al. (https://arxiv.org/abs/2002.04745, figure 3), reports the second matrix of the feed-forward
sublayer. Writes gradients.csv (one line per wiring, depth, seed and layer), gradients.md and gradients.png
into the folder results/ next to this file.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.data import Batches
from t2x.experiments import read_config
from t2x.sweeps.sweep import read_sweep

HERE = Path(__file__).parent
WIRINGS = {'pre-norm': 'pre_no_warmup', 'post-norm': 'post_no_warmup'}
DEPTHS = (2, 6, 12)
SEEDS = range(5)
FIELDS = ('wiring', 'depth', 'seed', 'layer', 'second_matrix', 'all')


def norms_per_layer(variant: str, depth: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields each seed and two arrays of gradient norms [layers] of the mean loss of one training batch: of
  the second feed-forward matrix, and of all parameters of a layer."""
  grid = {'Stack.num_layers': list(DEPTHS)}
  sweep = read_sweep(HERE / 'sweep.gin', [f'Sweep.grid={grid}'])
  (arm,) = (
    arm
    for arm in sweep.arms()
    if arm.variant == variant and arm.point == {'Stack.num_layers': depth}
  )
  build, task, trainer = read_config(arm.files, arm.bindings).build().complete()
  task = task.bound(task.fit_tokenizer())
  rows = task.rows(task.train_split)

  @jax.jit
  def norms(seed, batch):
    def loss(model):
      total, weight = task.sums(model, batch, None).metrics['loss']
      return total / weight

    model = build(rngs=nnx.Rngs(jax.random.key(seed)))
    # The layers are stacked: the leading axis of each parameter is the layer.
    (block,) = jax.grad(loss)(model).body.stack.blocks
    squares = [jnp.square(leaf).reshape(depth, -1).sum(1) for leaf in jax.tree.leaves(block)]
    second = block.feed_forward.down.kernel[...]
    return jnp.linalg.norm(second.reshape(depth, -1), axis=1), jnp.sqrt(sum(squares))

  for seed in SEEDS:
    batches = Batches(rows, None, batch_size=trainer.batch_size, seed=seed)
    second, total = jax.device_get(norms(seed, batches[0]))
    yield seed, second, total


def table(lines: list[dict]) -> str:
  """Formats the means over seeds for the first, middle and last layer as a Markdown table."""
  rows = ['| wiring | layers | first | middle | last | last / first |', '|---|---|---|---|---|---|']
  for wiring in WIRINGS:
    for depth in DEPTHS:
      mean = profile(lines, wiring, depth)
      first, middle, last = mean[0], mean[depth // 2], mean[-1]
      cells = f'{first:.4f} | {middle:.4f} | {last:.4f} | {last / first:.1f}'
      rows.append(f'| {wiring} | {depth} | {cells} |')
  return '\n'.join(rows) + '\n'


def profile(lines: list[dict], wiring: str, depth: int) -> np.ndarray:
  """Returns the gradient norm of the second matrix of each layer, as a mean over seeds."""
  matches = [line for line in lines if (line['wiring'], line['depth']) == (wiring, depth)]
  values = [
    [line['second_matrix'] for line in matches if line['layer'] == layer]
    for layer in range(1, depth + 1)
  ]
  return np.array(values).mean(axis=1)


def plot(lines: list[dict], path: Path) -> None:
  """Plots the gradient norm by layer, with one line per wiring and depth."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  figure, axes = pyplot.subplots(figsize=(6, 4), layout='constrained')
  for (wiring, style), depth in (
    (w, d) for w in zip(WIRINGS, ('-', '--'), strict=True) for d in DEPTHS
  ):
    colour = f'C{DEPTHS.index(depth)}'
    values = profile(lines, wiring, depth)
    layers = range(1, depth + 1)
    axes.plot(layers, values, style, color=colour, marker='.', label=f'{wiring}, {depth} layers')
  axes.set(xlabel='layer', ylabel='gradient norm, second feed-forward matrix', yscale='log')
  axes.legend(fontsize=8)
  figure.savefig(path, dpi=120)


def main() -> None:
  lines = [
    dict(zip(FIELDS, (wiring, depth, seed, layer, float(a), float(b)), strict=True))
    for wiring, variant in WIRINGS.items()
    for depth in DEPTHS
    for seed, second, total in norms_per_layer(variant, depth)
    for layer, (a, b) in enumerate(zip(second, total, strict=True), 1)
  ]
  results = HERE / 'results'
  results.mkdir(exist_ok=True)
  with (results / 'gradients.csv').open('w', newline='') as file:
    writer = csv.DictWriter(file, FIELDS, lineterminator='\n')
    writer.writeheader()
    writer.writerows(line | {name: f'{line[name]:.6g}' for name in FIELDS[-2:]} for line in lines)
  (results / 'gradients.md').write_text(table(lines))
  plot(lines, results / 'gradients.png')
  print(table(lines))


if __name__ == '__main__':
  main()
