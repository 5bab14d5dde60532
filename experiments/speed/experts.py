"""Milliseconds of a layer of experts, forward and backward, beside a dense layer of the same FLOPs per token.

python experiments/speed/experts.py            # GPU: 16,384 tokens of width 1024, bfloat16; CPU: 2,048 of 256, float32
python experiments/speed/experts.py --smoke    # all of it at tiny sizes, in seconds

Two experts per token, each a gated MLP; the dense layer has twice their hidden width. Contenders alternate in one
process. `error` is the largest difference of outputs and gradients from a layer whose capacity drops nothing, relative
to the largest value, for small inputs of the same dtype. Needs jax, flax, optax, orbax and jaxtyping, and no
installation of t2x. Writes experts.json to $OUT if that is set.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# From a bare checkout, t2x is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

CHOICES = 2


@dataclasses.dataclass(frozen=True)
class Size:
  """Rows, tokens per row, width, and hidden width of an expert."""

  batch: int
  length: int
  width: int
  hidden: int
  dtype: str

  @property
  def flops(self) -> int:
    """FLOPs of the chosen experts in a step: three products of each gated MLP, in three passes."""
    return 3 * 2 * self.batch * self.length * CHOICES * 3 * self.width * self.hidden


SIZES = {
  'gpu': Size(8, 2048, 1024, 2816, 'bfloat16'),
  'cpu': Size(8, 256, 256, 512, 'float32'),
  'smoke': Size(2, 64, 16, 32, 'float32'),
}


def layer(size: Size, experts: int | None, dispatch=None):
  """Returns a layer with experts, or a dense one."""
  from flax import nnx

  from t2x.layers import GatedMLP, MixtureOfExperts

  if experts is None:
    return GatedMLP(size.width, hidden_dim=CHOICES * size.hidden, rngs=nnx.Rngs(0))
  expert = functools.partial(GatedMLP, hidden_dim=size.hidden)
  settings = {'num_experts': experts, 'expert': expert, 'dispatch': dispatch}
  return MixtureOfExperts(size.width, **settings, rngs=nnx.Rngs(0))


def loss(part, x, cotangent):
  """Returns a loss whose gradient for the output is `cotangent`, and the output."""
  import jax.numpy as jnp

  from t2x.layers import Call, Tokens

  result = part(x, Call(Tokens.row(x.shape[1])))
  total = (result.x.astype(jnp.float32) * cotangent.astype(jnp.float32)).sum()
  return total + sum(loss.sum() for loss in result.aux.losses.values()), result.x


def arrays(size: Size):
  """Returns inputs and the gradient of the output."""
  import jax

  keys = jax.random.split(jax.random.key(1), 2)
  return [jax.random.normal(k, (size.batch, size.length, size.width), size.dtype) for k in keys]


def contenders(experts: int) -> dict:
  """Returns by name the number of experts, the dispatch, and whether its products are `jax.lax.ragged_dot`."""
  from t2x.layers import Capacity, Dropless

  return {
    'dense': (None, None, False),
    'Capacity': (experts, Capacity(), False),
    'Dropless': (experts, Dropless(), False),
    'Dropless, ragged_dot': (experts, Dropless(), True),
  }


def lowered(size: Size, experts: int | None, dispatch, ragged: bool) -> tuple:
  """Returns the program of a step, not compiled, and its arguments."""
  import jax
  import jax.numpy as jnp

  from t2x.base.step import in_step

  def build():
    part = layer(size, experts, dispatch)
    return jax.tree.map(lambda a: a.astype(size.dtype), part)

  part, inputs = jax.jit(build)(), arrays(size)
  step = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
  with in_step(target='tpu' if ragged else None):
    program = step.lower(part, jnp.asarray(inputs[0]), inputs[1])
  return program, (part, *inputs)


def error(size: Size, experts: int, dispatch, ragged: bool) -> float:
  """Returns the largest difference from a layer whose capacity drops nothing."""
  import jax
  import numpy as np

  from t2x.layers import Capacity

  small = Size(2, 256, 64, 96, size.dtype)
  with jax.default_matmul_precision('highest'):
    programs = [
      lowered(small, experts, Capacity(factor=float(experts)), False),
      lowered(small, experts, dispatch, ragged),
    ]
    outputs = [jax.tree.leaves(program.compile()(*args)) for program, args in programs]
  return max(
    float(np.abs(a - b).max() / np.abs(a).max())
    for a, b in zip(*jax.tree.map(lambda a: np.asarray(a, np.float32), outputs), strict=True)
  )


def times_of(runs: dict[str, Callable], rounds: int) -> dict[str, float]:
  """Returns median milliseconds of the functions, which alternate."""
  import jax

  times: dict[str, list[float]] = {name: [] for name in runs}
  for number in range(rounds + 2):
    for name, run in runs.items():
      began = time.perf_counter()
      jax.block_until_ready(run())
      if number >= 2:
        times[name].append(1e3 * (time.perf_counter() - began))
  return {name: statistics.median(values) for name, values in times.items()}


def measure(size: Size, experts: int, rounds: int) -> Iterator[dict]:
  """Yields a row for each contender."""
  cases, failures, errors = contenders(experts), {}, {}
  runs, waiting = {}, {}
  with concurrent.futures.ThreadPoolExecutor() as pool:
    for name, case in cases.items():
      program, arguments = lowered(size, *case)
      waiting[name] = pool.submit(program.compile), arguments
  for name, (future, arguments) in waiting.items():
    try:
      compiled = future.result()
      runs[name] = functools.partial(compiled, *arguments)
      if name.startswith('Dropless'):
        errors[name] = f'{error(size, *cases[name]):.1e}'
      runs[name]()
    except Exception as problem:  # A kernel that does not compile is a row of its own.
      failures[name] = f'{type(problem).__name__}: {str(problem)[:200]}'
      runs.pop(name, None)
  times = times_of(runs, rounds)
  for name in cases:
    row = {'experts': experts, 'contender': name}
    if name in failures:
      yield {**row, 'failed': failures[name]}
      continue
    row |= {
      'milliseconds': round(times[name], 3),
      'of_dense': round(times[name] / times['dense'], 3),
    }
    if name.startswith('Dropless'):
      row |= {'of_capacity': round(times[name] / times['Capacity'], 3), 'error': errors[name]}
    teraflops = round(size.flops / times[name] / 1e9, 3)
    yield {**row, 'active_teraflops_per_second': teraflops, 'load': round(os.getloadavg()[0], 1)}


def processor() -> str:
  """Returns the name of the device, of a CPU with its number of cores."""
  import jax

  kind = jax.devices()[0].device_kind
  if jax.default_backend() != 'cpu':
    return kind
  path = Path('/proc/cpuinfo')
  lines = path.read_text().splitlines() if path.exists() else []
  names = [line.split(':')[1].strip() for line in lines if line.startswith('model name')]
  return f'{names[0] if names else platform.processor()}, {os.cpu_count()} cores'


def main() -> None:
  """Prints a row for each layer."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--smoke', action='store_true')
  parser.add_argument('--rounds', type=int, default=15)
  arguments = parser.parse_args()
  from t2x.process.allocator import set_allocator

  set_allocator()
  import jax

  name = 'smoke' if arguments.smoke else 'cpu' if jax.default_backend() == 'cpu' else 'gpu'
  size, began = SIZES[name], time.perf_counter()
  first = {'device': processor(), 'jax': jax.__version__, **dataclasses.asdict(size)}
  rows = [first]
  print(json.dumps(first), flush=True)
  for experts in (4,) if arguments.smoke else (8, 64):
    for row in measure(size, experts, 1 if arguments.smoke else arguments.rounds):
      print(json.dumps(row), flush=True)
      rows.append(row)
  print(f'{time.perf_counter() - began:.0f} seconds')
  if out := os.environ.get('OUT'):
    (Path(out) / 'experts.json').write_text('\n'.join(map(json.dumps, rows)) + '\n')


if __name__ == '__main__':
  main()
