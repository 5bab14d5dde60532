"""Compares the time of a sweep with the time of its trials as separate `t2x train` processes.

    python experiments/speed/sweep_sharing.py experiments/narang2021/tiny_steps.gin \\
      --variants vanilla geglu --seeds 5

The separate processes use a warm persistent compilation cache. The sweep is measured without a cache and
with that cache. All times include the start of Python. The cases are measured in turn, and the medians are
printed.

Measured 2026-11-22 on two hyperthreads of one core (jax 0.10.2), the command above with --repeats 1: 111.0 s
as separate processes; as a sweep 104.9 s in one process, 53.3 s in two, the default here (2.08 times as
fast), and 37.2 s with the cache (2.98 times). Other measurements without a cache: 2.23, 2.01; with four
programs (with fixup and shaw_positions): 1.96.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from t2x.sweeps.plan import make_plan
from t2x.sweeps.runners import distinct
from t2x.sweeps.sweep import read_sweep


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('sweep', help='a sweep file')
  parser.add_argument('--variants', nargs='+', help='variants of the sweep (default: all)')
  parser.add_argument('--seeds', type=int, default=5)
  parser.add_argument('--repeats', type=int, default=3)
  return parser.parse_args()


def t2x(*words: object, **environment: str) -> float:
  """Runs a t2x command and returns its seconds."""
  start = time.monotonic()
  command = [sys.executable, '-m', 't2x', *map(str, words)]
  subprocess.run(command, check=True, capture_output=True, env=os.environ | environment)
  return time.monotonic() - start


def main() -> None:
  args = arguments()
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    bindings = [f'Sweep.only={args.variants or []!r}', f'Sweep.seeds={args.seeds}']
    plan, configs = make_plan(read_sweep(args.sweep, bindings))
    trials = distinct(plan.trials)
    programs = {trial.program: trial for trial in trials}
    for trial in trials:
      (folder / f'{trial.folder}.gin').write_text(configs[trial.folder])
    cache = {
      'JAX_COMPILATION_CACHE_DIR': str(folder / 'cache'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    }

    def separate(chosen=trials) -> float:
      return sum(
        t2x(
          'train', folder / f'{trial.folder}.gin', '--out', folder / 'runs' / trial.folder, **cache
        )
        for trial in chosen
      )

    def swept(*more: str, **environment: str) -> float:
      options = [f'--gin.{binding}' for binding in bindings]
      return t2x('sweep', args.sweep, '--out', folder / 'out', *options, *more, **environment)

    cases = {
      'separate processes, warm cache': separate,
      'sweep, one process': lambda: swept('--processes', '1'),
      'sweep, default': swept,
      'sweep, default, warm cache': lambda: swept(**cache),
    }
    separate(programs.values())  # Warms the cache.
    times: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(args.repeats):
      for case, run in cases.items():
        for old in ('runs', 'out'):
          shutil.rmtree(folder / old, ignore_errors=True)
        times[case].append(run())
        load_now = os.getloadavg()[0]
        print(f'{case}: {times[case][-1]:.1f} s (load {load_now:.1f})', flush=True)
  reference = statistics.median(times['separate processes, warm cache'])
  print(f'{len(trials)} trials of {len(programs)} programs; medians of {args.repeats}:')
  for case, seconds in times.items():
    median = statistics.median(seconds)
    print(f'{case:32} {median:7.1f} s  {reference / median:.2f} times as fast')


if __name__ == '__main__':
  main()
