"""How much faster a sweep is than its trials as separate `t2x train` processes.

    python experiments/speed/sweep_sharing.py experiments/narang2021/tiny_steps.gin \\
      --variants vanilla geglu --seeds 5

The separate processes find everything that they compile in a warm persistent cache. The sweep compiles
from nothing, and once more with that cache. Both start Python as often as they must. Times alternate;
medians are told.

Measured 2026-11-22 on two hyperthreads of one core (jax 0.10.2), the command above with --repeats 1: 111.0 s
apart; as a sweep 104.9 s in one process, 53.3 s in two, which is what it chooses here (2.08 times as fast), and
37.2 s with the cache (2.98 times). Other runs of it from nothing: 2.23, 2.01; of four programs (with fixup and
shaw_positions): 1.96.
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
  parser.add_argument('--variants', nargs='+', help='of the sweep (default: all)')
  parser.add_argument('--seeds', type=int, default=5)
  parser.add_argument('--repeats', type=int, default=3)
  return parser.parse_args()


def t2x(*words: object, **environment: str) -> float:
  """Seconds of a command."""
  began = time.monotonic()
  command = [sys.executable, '-m', 't2x', *map(str, words)]
  subprocess.run(command, check=True, capture_output=True, env=os.environ | environment)
  return time.monotonic() - began


def main() -> None:
  args = arguments()
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    some = [f'Sweep.only={args.variants or []!r}', f'Sweep.seeds={args.seeds}']
    plan, configs = make_plan(read_sweep(args.sweep, some))
    trials = distinct(plan.trials)
    programs = {one.program: one for one in trials}
    for trial in trials:
      (folder / f'{trial.folder}.gin').write_text(configs[trial.folder])
    cache = {
      'JAX_COMPILATION_CACHE_DIR': str(folder / 'cache'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    }

    def separate(chosen=trials) -> float:
      return sum(
        t2x('train', folder / f'{one.folder}.gin', '--out', folder / 'runs' / one.folder, **cache)
        for one in chosen
      )

    def swept(*more: str, **environment: str) -> float:
      bindings = [f'--gin.{one}' for one in some]
      return t2x('sweep', args.sweep, '--out', folder / 'out', *bindings, *more, **environment)

    ways = {
      'separate processes, warm cache': separate,
      'sweep, one process': lambda: swept('--processes', '1'),
      'sweep, as it chooses': swept,
      'sweep, as it chooses, warm cache': lambda: swept(**cache),
    }
    separate(programs.values())  # Warms the cache.
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.repeats):
      for way, run in ways.items():
        for old in ('runs', 'out'):
          shutil.rmtree(folder / old, ignore_errors=True)
        times[way].append(run())
        load_now = os.getloadavg()[0]
        print(f'{way}: {times[way][-1]:.1f} s (load {load_now:.1f})', flush=True)
  reference = statistics.median(times['separate processes, warm cache'])
  print(f'{len(trials)} trials of {len(programs)} programs; medians of {args.repeats}:')
  for way, seconds in times.items():
    median = statistics.median(seconds)
    print(f'{way:32} {median:7.1f} s  {reference / median:.2f} times as fast')


if __name__ == '__main__':
  main()
