"""Milliseconds per train step of small models: t2x, PyTorch (vision: timm), and PyTorch with torch.compile.

python experiments/speed/train_step.py --rounds 7 --out experiments/speed/results/train_step.csv

Each contender is a process of its own that stays alive; in each round all of them take a few steps in turn, so that
other work on the machine is shared by all. Printed are medians over the rounds, with the fastest and the slowest
round. Shapes, batch, precision, AdamW and gradient clipping are equal (configs/, torch_models.py), and so are
the numbers of parameters, which are compared. Needs the extra `references` for PyTorch, and
`report` for the plot.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rows import show
from workers import Worker, compare, serve

HERE = Path(__file__).parent
NAMES = ('gpt', 'bert', 'encoder_decoder', 'vit', 'small_gpt')
VISION = ('resnet', 'vit_tiny', 'swin', 'convnext')
CONTENDERS = ('t2x', 'eager', 'compile')


def t2x_steps(name: str, precision: str, bindings: Sequence[str] = ()):
  """Returns the number of parameters and a function that takes steps and returns the last loss."""
  from t2x.process.allocator import set_allocator

  set_allocator()
  import jax
  import numpy as np
  from throughput import random_batch

  from t2x.experiments import read_config
  from t2x.train import Program

  dtype = {'f32': 'float32', 'bf16': 'bfloat16'}[precision]
  bindings = [f"Trainer.compute_dtype='{dtype}'", *bindings]
  config = read_config([str(HERE / f'configs/{name}.gin')], bindings)
  program = Program(config.build())
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
  """Serves train steps of one contender."""
  if contender == 't2x':
    count, take = t2x_steps(name, precision)
  else:
    count, take = torch_steps(name, precision, contender == 'compile')
  # Single steps take page faults until about the thirtieth, when the memory allocator has blocks of all sizes.
  serve(take, warm_up=40, parameters=count)


def measure(name: str, precision: str, rounds: int, contenders: Sequence[str]) -> list[dict]:
  """Returns a row for each contender."""
  workers = {
    contender: Worker([__file__, '--work', contender, name, precision]) for contender in contenders
  }
  counts = {contender: worker.ready['parameters'] for contender, worker in workers.items()}
  if len(set(counts.values())) > 1:
    raise SystemExit(f'{name}: the numbers of parameters differ: {counts}')
  table = compare(workers, rounds)
  return [
    {
      'model': name,
      'precision': precision,
      'contender': contender,
      **row,
      **workers[contender].ready,
    }
    for contender, row in table.items()
  ]


def main() -> None:
  """Prints and writes a row for each model, precision and contender."""
  if sys.argv[1:2] == ['--work']:
    return work(*sys.argv[2:5])
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', nargs='+', default=NAMES, choices=NAMES + VISION)
  parser.add_argument('--precisions', nargs='+', default=['f32', 'bf16'], choices=['f32', 'bf16'])
  parser.add_argument('--contenders', nargs='+', default=CONTENDERS, choices=CONTENDERS)
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument(
    '--out', type=Path, metavar='FILE', help='CSV file to write, with a plot beside it'
  )
  args = parser.parse_args()
  rows = (
    row
    for precision in args.precisions
    for name in args.models
    for row in measure(name, precision, args.rounds, args.contenders)
  )
  show(rows, args.out, case=('model', 'precision'))
  return None


if __name__ == '__main__':
  main()
