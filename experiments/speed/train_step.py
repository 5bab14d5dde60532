"""Milliseconds per train step of five small models: t2x, PyTorch, and PyTorch with torch.compile.

python experiments/speed/train_step.py --rounds 7 --out experiments/speed/results/train_step.csv

Each contender is a process of its own that stays alive; in each round all of them take a few steps in turn, so that
other work on the machine is shared by all. Printed are medians over the rounds, with the fastest and the slowest
round. Shapes, batch, precision, AdamW and gradient clipping are equal (configs/, torch_models.py), and so are
the numbers of parameters, which are compared. Needs the extra `parity` for PyTorch.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ('gpt', 'bert', 'encoder_decoder', 'vit', 'small_gpt')
CONTENDERS = ('t2x', 'eager', 'compile')


def t2x_steps(name: str, precision: str):
  """Returns the number of parameters and a function that takes steps and returns the last loss."""
  from t2x.allocator import set_allocator

  set_allocator()
  import jax
  import numpy as np
  from throughput import random_batch

  from t2x.api import read_config
  from t2x.train import TrainProgram

  dtype = {'f32': 'float32', 'bf16': 'bfloat16'}[precision]
  config = read_config([str(HERE / f'configs/{name}.gin')], [f"Trainer.compute_dtype='{dtype}'"])
  program = TrainProgram(config.build())
  state, frozen = program.init(0)
  step = program.train_step()
  batch = random_batch(program)
  count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state.params))

  def take(steps: int) -> float:
    nonlocal state
    for _ in range(steps):
      state, sums = step(state, frozen, batch)
    return sums.loss

  return count, take


def torch_steps(name: str, precision: str, compiled: bool):
  """As `t2x_steps`."""
  import torch
  from torch_models import MODELS, random_batch

  model = MODELS[name][0]()
  batch = random_batch(name)
  optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)

  def objective(batch):
    with torch.autocast('cpu', torch.bfloat16, enabled=precision == 'bf16'):
      return model(batch)

  run = torch.compile(objective) if compiled else objective

  def take(steps: int) -> float:
    for _ in range(steps):
      loss = run(batch)
      optimizer.zero_grad(set_to_none=True)
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
    return loss.item()

  return sum(p.numel() for p in model.parameters()), take


def work(contender: str, name: str, precision: str) -> None:
  """Takes as many steps as each line of stdin asks for, and writes their seconds."""
  began = time.perf_counter()
  if contender == 't2x':
    count, take = t2x_steps(name, precision)
  else:
    count, take = torch_steps(name, precision, contender == 'compile')
  first = take(1)
  ready = {'parameters': count, 'first_loss': first, 'start': time.perf_counter() - began}
  print(json.dumps(ready), flush=True)
  for line in sys.stdin:
    began = time.perf_counter()
    loss = take(int(line))
    print(json.dumps({'seconds': time.perf_counter() - began, 'loss': loss}), flush=True)


class Worker:
  """A process that takes steps on request."""

  def __init__(self, contender: str, name: str, precision: str):
    command = [sys.executable, __file__, '--work', contender, name, precision]
    self._process = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    self.ready = self._read()

  def _read(self) -> dict:
    assert self._process.stdout is not None
    while not (line := self._process.stdout.readline()).startswith('{'):
      if not line:
        raise SystemExit(f'{" ".join(map(str, self._process.args))} ended')
    return json.loads(line)

  def milliseconds(self, steps: int) -> float:
    """Milliseconds per step."""
    assert self._process.stdin is not None
    self._process.stdin.write(f'{steps}\n')
    return 1e3 * self._read()['seconds'] / steps

  def close(self) -> None:
    """Ends the process."""
    assert self._process.stdin is not None
    self._process.stdin.close()
    self._process.wait()


def compare(name: str, precision: str, rounds: int, contenders) -> list[dict]:
  """Returns a row for each contender."""
  workers = {contender: Worker(contender, name, precision) for contender in contenders}
  counts = {contender: worker.ready['parameters'] for contender, worker in workers.items()}
  if len(set(counts.values())) > 1:
    raise SystemExit(f'{name}: the numbers of parameters differ: {counts}')
  steps = {c: max(3, round(1000 / worker.milliseconds(5))) for c, worker in workers.items()}
  times: dict[str, list[float]] = {contender: [] for contender in contenders}
  for _ in range(rounds):
    for contender, worker in workers.items():
      times[contender].append(worker.milliseconds(steps[contender]))
  for worker in workers.values():
    worker.close()
  medians = {contender: statistics.median(found) for contender, found in times.items()}
  return [
    {
      'model': name,
      'precision': precision,
      'contender': contender,
      'milliseconds': round(medians[contender], 1),
      'fastest': round(min(times[contender]), 1),
      'slowest': round(max(times[contender]), 1),
      't2x_speed': round(medians[contender] / medians['t2x'], 2) if 't2x' in medians else '',
      'parameters': counts[contender],
      'load': round(os.getloadavg()[0], 1),
    }
    for contender in contenders
  ]


def main() -> None:
  """Prints and writes a row for each model, precision and contender."""
  if sys.argv[1:2] == ['--work']:
    return work(*sys.argv[2:5])
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', nargs='+', default=NAMES, choices=NAMES)
  parser.add_argument('--precisions', nargs='+', default=['f32', 'bf16'], choices=['f32', 'bf16'])
  parser.add_argument('--contenders', nargs='+', default=CONTENDERS, choices=CONTENDERS)
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--out', type=Path, metavar='FILE', help='CSV file to write')
  args = parser.parse_args()
  rows = []
  for precision in args.precisions:
    for name in args.models:
      for row in compare(name, precision, args.rounds, args.contenders):
        print('  '.join(f'{key} {value}' for key, value in row.items()), flush=True)
        rows.append(row)
  if args.out:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open('w', newline='') as file:
      writer = csv.DictWriter(file, rows[0])
      writer.writeheader()
      writer.writerows(rows)
  return None


if __name__ == '__main__':
  main()
