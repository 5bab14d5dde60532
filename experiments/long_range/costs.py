"""Time and memory of one layer of each mechanism of the recall sweep, by the length of the row.

    python experiments/long_range/costs.py

Measures the loss and its gradients by the parameters and the input of one mechanism, without token shift, at the
settings of recall_sweep.gin, for one row in float32; full attention with the kernels Dense and Blockwise. Prints a
table in Markdown and writes costs.csv and costs.png into the folder results/ next to this file (needs the extra
`report`). Memory is the temporary memory of the compiled program.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from t2x.experiments import read_config
from t2x.process.allocator import set_allocator
from t2x.process.compile_cache import set_compile_cache
from t2x.sweeps.sweep import read_sweep

sys.path.append(str(Path(__file__).parents[1] / 'speed'))
import rows as benchmark

HERE = Path(__file__).parent
SWEEP = HERE / 'recall_sweep.gin'
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
# Replaces the sweep's baseline: full attention with each kernel, and the longest row for it.
FULL = {
  'full, Dense': ('MultiHeadAttention.kernel=@Dense()', 4096),
  'full, Blockwise': ('MultiHeadAttention.kernel=@Blockwise()', None),
}
# Exponents of time are fitted to rows of at least this length.
FITTED_FROM = 2048
# Seconds of a call after which a mechanism is not measured at longer rows.
SLOWEST = 4.0
# Seconds of the calls of a mechanism in a round, unless a single call takes longer.
ROUND = 0.05


@dataclasses.dataclass
class Mechanism:
  """A mechanism of the sweep.

  Attributes:
    name: name of the variant, with the kernel for full attention.
    files: gin files of the experiment.
    bindings: bindings of the variant.
    longest: length of the longest row; None: no limit.
  """

  name: str
  files: tuple[str, ...]
  bindings: tuple[str, ...]
  longest: int | None = None

  def fits(self, length: int) -> bool:
    """Returns whether rows of `length` are to be measured."""
    return self.longest is None or length <= self.longest


@dataclasses.dataclass
class Program:
  """A compiled gradient at one length.

  Attributes:
    call: computes the gradient and waits for it.
    megabytes: temporary memory.
    first: seconds of the second call, the first one without the costs of starting.
    times: seconds per call in each round.
  """

  call: Callable[[], None]
  megabytes: float
  first: float
  times: list[float]

  def measure(self) -> None:
    """Adds a round."""
    repeat = max(1, round(ROUND / self.first))
    began = time.perf_counter()
    for _ in range(repeat):
      self.call()
    self.times.append((time.perf_counter() - began) / repeat)


def mechanisms(names: Iterable[str] = ()) -> list[Mechanism]:
  """Returns the mechanisms of the sweep, or only those of these variants."""
  sweep = read_sweep(SWEEP)
  found = []
  for arm in sweep.arms():
    if names and arm.variant not in names:
      continue
    if arm.variant == sweep.baseline:
      for name, (binding, longest) in FULL.items():
        found.append(Mechanism(name, arm.files, (*arm.bindings, binding), longest))
    else:
      found.append(Mechanism(arm.variant, arm.files, arm.bindings))
  return found


def compile_gradient(mechanism: Mechanism, length: int) -> Program:
  """Compiles the gradient of one layer at one length, and calls it twice."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  from flax import nnx

  from t2x.layers import Call, Full, Tokens

  bindings = [*mechanism.bindings, f'length={length}']
  experiment = read_config(mechanism.files, bindings)
  block = read_config(mechanism.files, bindings, base=experiment, root='@Block').build().keywords
  d_model = experiment.build().model.keywords['d_model']
  build = block['mixer'].keywords['sublayer']
  graph, shapes = nnx.split(nnx.eval_shape(lambda: build(d_model, rngs=nnx.Rngs(0))))
  # Compiling the initialisers would take longer than the measurement.
  rng = np.random.default_rng(0)
  parameters = jax.tree.map(lambda a: jnp.asarray(rng.normal(0, 0.1, a.shape), a.dtype), shapes)
  call = Call(Tokens.row(length), block.get('pattern', Full()))
  x = jnp.asarray(rng.normal(size=(1, length, d_model)), jnp.float32)

  def loss(parameters, x):
    return jnp.square(nnx.merge(graph, parameters)(x, call).x).sum()

  program = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(parameters, x).compile()

  def run() -> None:
    jax.block_until_ready(program(parameters, x))

  began = time.perf_counter()
  run()
  if (first := time.perf_counter() - began) < SLOWEST:
    began = time.perf_counter()
    run()
    first = time.perf_counter() - began
  return Program(run, program.memory_analysis().temp_size_in_bytes / 1e6, first, [])


def measure(chosen: Sequence[Mechanism], lengths: Sequence[int], rounds: int) -> list[dict]:
  """Returns one row for each mechanism and length; prints each length when it is done."""
  rows, slow = [], set()
  for length in lengths:
    programs = {}
    began = time.perf_counter()
    for mechanism in chosen:
      if mechanism.fits(length) and mechanism.name not in slow:
        programs[mechanism.name] = compile_gradient(mechanism, length)
    compiled = time.perf_counter() - began
    for number in range(rounds):
      for name, program in programs.items():
        if program.first > SLOWEST:
          slow.add(name)
        if number == 0 or name not in slow:
          program.measure()
    for name, program in programs.items():
      times = [1e3 * seconds for seconds in program.times]
      row = {
        'mechanism': name,
        'length': length,
        'milliseconds': round(statistics.median(times), 2),
        'fastest': round(min(times), 2),
        'slowest': round(max(times), 2),
        'megabytes': round(program.megabytes, 2),
        'rounds': len(times),
        'load': round(os.getloadavg()[0], 1),
      }
      rows.append(row)
      benchmark.print_row(row)
    seconds = time.perf_counter() - began
    print(f'length {length}: {seconds:.0f} s, {compiled:.0f} s of them compile', flush=True)
  return rows


def exponent(rows: Iterable[dict], column: str, at_least: int = 0) -> float:
  """Returns the exponent of `column` by length; NaN for fewer than two rows.

  Args:
    rows: rows of one mechanism.
    column: name of the column.
    at_least: length of the shortest row that is used.
  """
  return benchmark.exponent((row for row in rows if row['length'] >= at_least), column)


def by_mechanism(rows: Iterable[dict]) -> dict[str, list[dict]]:
  """Returns the rows of each mechanism."""
  table: dict[str, list[dict]] = {}
  for row in rows:
    table.setdefault(row['mechanism'], []).append(row)
  return table


def markdown(rows: Iterable[dict]) -> str:
  """Returns a table with one line per mechanism: time and memory by length, and the exponents."""
  table = by_mechanism(rows)
  lengths = sorted({row['length'] for own in table.values() for row in own})
  columns = ['mechanism', *map(str, lengths), 'time grows with', 'memory grows with']
  lines = [f'| {" | ".join(columns)} |', '|---' * len(columns) + '|']
  for name, own in table.items():
    cells = {
      row['length']: f'{row["milliseconds"]:.3g} ms, {row["megabytes"]:.3g} MB' for row in own
    }
    powers = exponent(own, 'milliseconds', FITTED_FROM), exponent(own, 'megabytes', FITTED_FROM)
    powers = ['' if power != power else f'length^{power:.2f}' for power in powers]
    lines.append(f'| {" | ".join([name, *(cells.get(n, "") for n in lengths), *powers])} |')
  return '\n'.join(lines)


def plot(rows: Iterable[dict], path: Path) -> None:
  """Draws time and memory by length, both on logarithmic axes."""
  from matplotlib import colormaps
  from matplotlib.figure import Figure

  table = by_mechanism(rows)
  figure = Figure(figsize=(12, 5), layout='constrained')
  axes = figure.subplots(1, 2)
  labels = {
    'milliseconds': 'milliseconds, forward and backward',
    'megabytes': 'temporary megabytes of the gradient',
  }
  for axis, (column, label) in zip(axes, labels.items(), strict=True):
    for index, (name, own) in enumerate(table.items()):
      style = {'color': colormaps['tab10'](index % 10), 'marker': 'os^'[index // 10]}
      x, y = [row['length'] for row in own], [row[column] for row in own]
      axis.plot(x, y, markersize=4, linewidth=1, label=name, **style)
    axis.set(xscale='log', yscale='log', xlabel='tokens in the row', ylabel=label)
    axis.set_xticks(sorted({row['length'] for own in table.values() for row in own}), minor=False)
    axis.xaxis.set_major_formatter('{x:.0f}')
    axis.minorticks_off()
  figure.legend(*axes[0].get_legend_handles_labels(), loc='outside right upper', fontsize='small')
  figure.savefig(path, dpi=120)


def main() -> None:
  """Measures, prints the table and writes the files."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--lengths', type=int, nargs='+', default=LENGTHS, metavar='N')
  parser.add_argument('--rounds', type=int, default=3, help='rounds of the median (default: 3)')
  parser.add_argument(
    '--variants', nargs='+', default=(), metavar='NAME', help='variants of the sweep (default: all)'
  )
  parser.add_argument(
    '--out', type=Path, default=HERE / 'results', metavar='FOLDER', help='folder of the results'
  )
  args = parser.parse_args()
  set_allocator()
  set_compile_cache()
  rows = measure(mechanisms(args.variants), sorted(args.lengths), args.rounds)
  print(markdown(rows))
  benchmark.write(rows, args.out / 'costs.csv')
  plot(rows, args.out / 'costs.png')


if __name__ == '__main__':
  main()
