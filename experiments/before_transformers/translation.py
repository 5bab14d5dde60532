"""CPU time of a training step of each system of translation.gin, and the curves of BLEU and loss by CPU minutes.

    python experiments/before_transformers/translation.py cost
    t2x sweep experiments/before_transformers/translation.gin --out runs/before_transformers
    python experiments/before_transformers/translation.py draw runs/before_transformers/translation

`cost` trains each system of translation_tuning.gin in alternating rounds and writes results/translation_costs.json: the
median CPU seconds of this process per step. CPU seconds depend less on other work of the machine than seconds do.
`draw` reads the trials, prints a table in Markdown, and writes results/translation.csv and results/translation.png. CPU
minutes are steps times the seconds of `cost`: without compilation and evaluations.
"""

import argparse
import csv
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from t2x.experiments import read_config
from t2x.process.compile_cache import set_compile_cache
from t2x.sweeps.sweep import read_sweep

HERE = Path(__file__).parent
COSTS = HERE / 'results' / 'translation_costs.json'
ROUNDS, STEPS = 6, 4


class System:
  """A system and its training state.

  Args:
    files: gin files of the experiment.
    bindings: further bindings.
    folder: folder for the run's files.
  """

  def __init__(self, files: tuple[str, ...], bindings: tuple[str, ...], folder: Path):
    from t2x.train import TrainingRun

    self.run = TrainingRun(read_config(files, bindings).build(), folder)
    self.batches = self.run.batches(self.run.rows(self.run.task.train_split))
    self.state, self.frozen = self.run.program.init(0)
    self.train_step = self.run.program.train_step()
    self.seconds: list[float] = []

  def train(self, steps: int) -> None:
    """Trains, and stores the CPU seconds per step."""
    import jax

    batches = [self.run.on_device(self.batches[i]) for i in range(steps)]
    began = time.process_time()
    for batch in batches:
      self.state, sums = self.train_step(self.state, self.frozen, batch)
    jax.block_until_ready((self.state, sums))
    self.seconds.append((time.process_time() - began) / steps)


def measure(folder: Path) -> dict[str, Any]:
  """Returns the costs of the systems at one rate, and the load of the machine."""
  systems = {}
  for arm in read_sweep(HERE / 'translation_tuning.gin').arms():
    if arm.variant not in systems:
      systems[arm.variant] = System(arm.files, arm.bindings, folder / arm.variant)
      systems[arm.variant].train(1)
  for _ in range(ROUNDS):
    for system in systems.values():
      system.train(STEPS)
  costs = {name: round(statistics.median(s.seconds[1:]), 4) for name, s in systems.items()}
  rounds = {name: [round(seconds, 4) for seconds in s.seconds[1:]] for name, s in systems.items()}
  return {'cpu_seconds_per_step': costs, 'rounds': rounds, 'load': os.getloadavg()[0]}


def curves(folder: Path, costs: dict[str, float]) -> list[dict[str, Any]]:
  """Returns one row per evaluation of each trial of a sweep's folder."""
  rows = []
  for trial in json.loads((folder / 'sweep.json').read_text())['trials']:
    path = folder.parent / 'trials' / trial['folder'] / 'metrics.jsonl'
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    rows += [
      {
        'system': trial['variant'],
        'seed': trial['seed'],
        'step': line['step'],
        'cpu_minutes': round(line['step'] * costs[trial['variant']] / 60, 3),
        'loss': line['loss'],
        'bleu': line['translations/bleu'],
      }
      for line in lines
      if line['split'] == 'eval'
    ]
  return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
  """Draws loss and BLEU by CPU minutes: a thin line per seed."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(10, 4), layout='constrained')
  axes = figure.subplots(1, 2)
  for axis, metric, label in zip(
    axes,
    ('loss', 'bleu'),
    ('validation loss (nats per token)', 'BLEU, 200 test pairs'),
    strict=True,
  ):
    for number, name in enumerate(dict.fromkeys(row['system'] for row in rows)):
      own = [row for row in rows if row['system'] == name]
      for index, seed in enumerate(dict.fromkeys(row['seed'] for row in own)):
        line = [row for row in own if row['seed'] == seed]
        x, y = [row['cpu_minutes'] for row in line], [row[metric] for row in line]
        shown = name if index == 0 else None
        axis.plot(x, y, marker='o', markersize=3, linewidth=1, color=f'C{number}', label=shown)
    axis.set(xlabel='CPU minutes of training', ylabel=label)
    axis.legend()
  figure.savefig(path, dpi=120)


def main() -> None:
  """Measures or draws."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('what', choices=('cost', 'draw'))
  parser.add_argument('folder', type=Path, nargs='?', default=Path('runs/before_transformers'))
  args = parser.parse_args()
  if args.what == 'cost':
    set_compile_cache()
    costs = measure(args.folder / 'costs')
    COSTS.parent.mkdir(exist_ok=True)
    COSTS.write_text(json.dumps(costs, indent=1) + '\n')
    print(json.dumps(costs['cpu_seconds_per_step']))
    return
  rows = curves(args.folder, json.loads(COSTS.read_text())['cpu_seconds_per_step'])
  with (HERE / 'results' / 'translation.csv').open('w', newline='') as file:
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
  draw(rows, HERE / 'results' / 'translation.png')
  print('| system | seed | steps | CPU minutes | loss | BLEU |\n|---|---|---|---|---|---|')
  for row in rows:
    print(
      f'| `{row["system"]}` | {row["seed"]} | {row["step"]} | {row["cpu_minutes"]:.2f} '
      f'| {row["loss"]:.3f} | {row["bleu"]:.1f} |'
    )


if __name__ == '__main__':
  main()
