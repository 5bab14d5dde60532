"""Time and memory of attention, forward and backward, by the length of the row.

python experiments/speed/attention.py --out experiments/speed/results/attention

Batch 1, 4 heads of 64 features, float32. Memory is the temporary memory of the compiled program. The exponents of
time and memory are fitted to the three longest rows. Writes a CSV file and a plot (needs the extra `report`).
"""

import argparse
import os
import statistics
import time
from pathlib import Path

from rows import exponent, print_row, write

from t2x.process.allocator import set_allocator

LONGEST_DENSE = 4096


def contenders() -> dict:
  """Returns kernel, pattern and the longest row by name."""
  from t2x.layers import Causal, Global, Window
  from t2x.layers.attention.kernels import XLA, Blockwise, Dense

  return {
    'Dense, causal': (Dense(), Causal(), LONGEST_DENSE),
    'XLA, causal': (XLA(), Causal(), LONGEST_DENSE),
    'Blockwise, causal': (Blockwise(), Causal(), None),
    'Blockwise, window 256': (Blockwise(), Causal() & Window(256), None),
    'Blockwise, window 256 and 16 global tokens': (Blockwise(), Window(256) | Global(16), None),
  }


def measure(kernel, pattern, length: int, repeat: int) -> dict[str, float]:
  """Returns the milliseconds and the temporary megabytes of the loss alone and with its gradients."""
  import jax
  import jax.numpy as jnp

  from t2x.layers import Tokens
  from t2x.layers.attention.kernels import AttentionInputs, DotProduct

  q, k, v = (
    jax.random.normal(key, (1, length, 4, 64)) for key in jax.random.split(jax.random.key(0), 3)
  )

  def loss(q, k, v):
    tokens = Tokens.row(length)
    out = kernel(AttentionInputs(DotProduct(q, k, 0.125), v, pattern, tokens, tokens))
    return jnp.square(out).sum()

  row = {}
  for name, function in (('forward', loss), ('both', jax.value_and_grad(loss, (0, 1, 2)))):
    program = jax.jit(function).lower(q, k, v).compile()
    jax.block_until_ready(program(q, k, v))
    times = []
    for _ in range(repeat):
      began = time.perf_counter()
      jax.block_until_ready(program(q, k, v))
      times.append(1e3 * (time.perf_counter() - began))
    row[f'{name}_ms'] = round(statistics.median(times), 2)
    row[f'{name}_megabytes'] = round(program.memory_analysis().temp_size_in_bytes / 1e6, 1)
  return row


def plot(table: dict[str, list[dict]], path: Path) -> None:
  """Draws time and memory by length."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(10, 4), layout='constrained')
  axes = figure.subplots(1, 2)
  labels = (
    ('both_ms', 'milliseconds, forward and backward'),
    ('both_megabytes', 'temporary megabytes'),
  )
  for axis, (column, label) in zip(axes, labels, strict=True):
    for name, rows in table.items():
      axis.plot([row['length'] for row in rows], [row[column] for row in rows], 'o-', label=name)
    axis.set(xscale='log', yscale='log', xlabel='tokens in the row', ylabel=label)
  axes[0].legend(fontsize='small')
  figure.savefig(path, dpi=120)


def main() -> None:
  """Prints a row for each kernel and length, and the exponents."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    '--lengths', type=int, nargs='+', default=[512 * 2**i for i in range(7)], metavar='N'
  )
  parser.add_argument('--repeat', type=int, default=5)
  parser.add_argument('--out', type=Path, metavar='PREFIX', help='writes PREFIX.csv and PREFIX.png')
  args = parser.parse_args()
  set_allocator()
  table: dict[str, list[dict]] = {}
  for name, (kernel, pattern, longest) in contenders().items():
    rows = table.setdefault(name, [])
    for length in args.lengths:
      if longest is not None and length > longest:
        continue
      found = measure(kernel, pattern, length, args.repeat)
      rows.append({'kernel': name, 'length': length, **found, 'load': round(os.getloadavg()[0], 1)})
      print_row(rows[-1])
    longest_rows = rows[-3:]
    print(
      f'{name}: time grows with length^{exponent(longest_rows, "both_ms"):.2f}, '
      f'memory with length^{exponent(longest_rows, "both_megabytes"):.2f}',
      flush=True,
    )
  if args.out:
    write([row for rows in table.values() for row in rows], args.out.with_suffix('.csv'))
    plot(table, args.out.with_suffix('.png'))


if __name__ == '__main__':
  main()
