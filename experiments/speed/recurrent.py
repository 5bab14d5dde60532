"""Milliseconds of a step of an LSTM layer in t2x and in torch.nn, with and without the backward pass.

python experiments/speed/recurrent.py
XLA_FLAGS='--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1' taskset -c 0 \\
  python experiments/speed/recurrent.py --threads 1

Both have the same sizes, and run in alternating rounds in one process, without padding. Times are medians; the last
column is the speed of t2x divided by that of PyTorch. With one thread of PyTorch, times are CPU time of the process,
which other processes disturb less.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

from t2x.process.allocator import set_allocator

# Batch, length, width.
SIZES = [(16, 64, 128), (32, 64, 256), (8, 256, 100)]


def contenders(batch: int, length: int, width: int) -> dict[tuple[str, str], Callable]:
  """Returns a function for each framework and kind of pass."""
  import jax
  import jax.numpy as jnp
  import torch
  from flax import nnx

  from t2x.layers import Call, Causal, Recurrent, Tokens

  layer = Recurrent(width, rngs=nnx.Rngs(0))
  call = Call(Tokens.row(length), Causal())
  x = jax.random.normal(jax.random.key(0), (batch, length, width))
  forward = jax.jit(lambda layer, x: layer(x, call).x)
  gradient = jax.jit(jax.grad(lambda layer, x: jnp.square(layer(x, call).x).mean(), (0, 1)))
  module = torch.nn.LSTM(width, width, batch_first=True)
  tensor = torch.randn((batch, length, width), requires_grad=True)

  def torch_forward() -> None:
    with torch.no_grad():
      module(tensor)

  def torch_gradient() -> None:
    module.zero_grad()
    tensor.grad = None
    module(tensor)[0].square().mean().backward()

  return {
    ('forward', 't2x'): lambda: jax.block_until_ready(forward(layer, x)),
    ('forward', 'torch'): torch_forward,
    ('forward and backward', 't2x'): lambda: jax.block_until_ready(gradient(layer, x)),
    ('forward and backward', 'torch'): torch_gradient,
  }


def main() -> None:
  """Prints a row for each size and kind of pass."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rounds', type=int, default=25)
  parser.add_argument('--threads', type=int, default=None, help='threads of PyTorch')
  arguments = parser.parse_args()
  set_allocator()
  import torch

  if arguments.threads is not None:
    torch.set_num_threads(arguments.threads)
  clock = time.process_time if arguments.threads == 1 else time.perf_counter
  for size in SIZES:
    functions = contenders(*size)
    times: dict[tuple[str, str], list[float]] = {name: [] for name in functions}
    for number in range(arguments.rounds + 3):
      for name, run in functions.items():
        began = clock()
        run()
        if number >= 3:  # The first rounds compile and fill the allocator.
          times[name].append(1e3 * (clock() - began))
    for kind in ('forward', 'forward and backward'):
      ours, theirs = (statistics.median(times[kind, name]) for name in ('t2x', 'torch'))
      print(
        f'batch {size[0]}, length {size[1]}, width {size[2]}  {kind}  t2x {ours:.1f} ms  torch {theirs:.1f} ms  '
        f'{theirs / ours:.2f}',
        flush=True,
      )
  cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
  print(f'{cores} cores, {torch.get_num_threads()} threads of PyTorch, load {load:.1f}')


if __name__ == '__main__':
  main()
