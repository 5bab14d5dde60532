"""Milliseconds of the matrix products of the small GPT's train step, in XLA and in PyTorch.

python experiments/speed/products.py

These are the products of configs/gpt.gin (batch 8, rows of 256 tokens, width 256): each alone, without the rest of the
step, in alternating rounds in one process. Their sums per step bound what a step can reach in each framework.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

from t2x.process.allocator import set_allocator

ROWS, LAYERS = 8 * 256, 6
# Name: (times per step, inputs, outputs) of a projection of ROWS vectors.
PROJECTIONS = {
  'logits': (1, 256, 8192),
  'q, k, v, output': (4 * LAYERS, 256, 256),
  'first of the MLP': (LAYERS, 256, 1024),
  'second of the MLP': (LAYERS, 1024, 256),
}
# Batch times heads, length and head width of an attention layer.
ATTENTION = (8 * 4, 256, 64)


def projection(inputs: int, outputs: int) -> tuple[list, Callable]:
  """Returns the arrays and the products of the forward and the backward pass of a projection."""
  return [(ROWS, inputs), (inputs, outputs), (ROWS, outputs)], lambda x, w, g: (
    x @ w,
    g @ w.T,
    x.T @ g,
  )


def attention() -> tuple[list, Callable]:
  """As `projection`, for scores, output and the four gradients of an attention layer."""
  batch, length, width = ATTENTION
  vectors, scores = (batch, length, width), (batch, length, length)
  return [vectors, vectors, scores], lambda a, b, p: (
    a @ b.mT,
    p @ b,
    a @ b.mT,
    p.mT @ a,
    p @ b,
    p.mT @ a,
  )


def measure(shapes: list, products: Callable, rounds: int) -> dict[str, float]:
  """Returns the median milliseconds of all `products` together in each framework."""
  import jax
  import torch

  keys = jax.random.split(jax.random.key(0), len(shapes))
  arrays = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
  tensors = [torch.randn(shape) for shape in shapes]
  compiled = jax.jit(products)
  contenders = {
    'XLA': lambda: jax.block_until_ready(compiled(*arrays)),
    'PyTorch': lambda: products(*tensors),
  }
  times: dict[str, list[float]] = {name: [] for name in contenders}
  for number in range(rounds + 3):
    for name, run in contenders.items():
      began = time.perf_counter()
      run()
      if number >= 3:  # The first rounds compile and fill the allocator.
        times[name].append(1e3 * (time.perf_counter() - began))
  return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
  """Prints a row for each group of products, and the sums per step."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rounds', type=int, default=15)
  rounds = parser.parse_args().rounds
  set_allocator()
  batch, length, width = ATTENTION
  gflop = {name: 6e-9 * ROWS * i * o for name, (_, i, o) in PROJECTIONS.items()}
  gflop['attention'] = 12e-9 * batch * length * length * width
  cases = {name: (count, *projection(i, o)) for name, (count, i, o) in PROJECTIONS.items()}
  cases['attention'] = (LAYERS, *attention())
  sums: dict[str, float] = {}
  for name, (count, shapes, products) in cases.items():
    for framework, milliseconds in measure(shapes, products, rounds).items():
      sums[framework] = sums.get(framework, 0.0) + count * milliseconds
      rate = gflop[name] / milliseconds * 1e3
      print(f'{name}  {framework}  {milliseconds:.1f} ms x {count}  {rate:.0f} GFLOP/s', flush=True)
  for framework, milliseconds in sums.items():
    print(f'all products of a step  {framework}  {milliseconds:.0f} ms')
  ratio = sums['PyTorch'] / sums['XLA']
  print(f'speed of the products, XLA / PyTorch  {ratio:.2f}  load {os.getloadavg()[0]:.1f}')


if __name__ == '__main__':
  main()
