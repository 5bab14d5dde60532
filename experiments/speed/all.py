"""Runs every benchmark of this folder that compares t2x with others, and writes their tables to results/.

python experiments/speed/all.py                    # about an hour on two CPU cores
python experiments/speed/all.py train_step data    # some of them
"""

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / 'results'
BENCHMARKS = {
  'train_step': ['--out', str(RESULTS / 'train_step.csv')],
  'generate': ['--out', str(RESULTS / 'generate.csv')],
  'attention': ['--out', str(RESULTS / 'attention')],
  'products': [],
  'data': [],
  'start': [],
}


def main() -> int:
  """Runs the benchmarks one after another; returns 1 if one of them failed."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('names', nargs='*', metavar='NAME', help=f'of {", ".join(BENCHMARKS)}; all')
  names = parser.parse_args().names or list(BENCHMARKS)
  if unknown := sorted(set(names) - set(BENCHMARKS)):
    parser.error(f'unknown benchmarks: {", ".join(unknown)}')
  RESULTS.mkdir(exist_ok=True)
  print(f'{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs', flush=True)
  failed = []
  for name in names:
    print(f'{name}: load {os.getloadavg()[0]:.1f}', flush=True)
    with (RESULTS / f'{name}.txt').open('w') as file:
      command = [sys.executable, str(HERE / f'{name}.py'), *BENCHMARKS[name]]
      with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
          print(line, end='', flush=True)
          file.write(line)
    if process.returncode:
      failed.append(name)
  if failed:
    print(f'failed: {", ".join(failed)}', file=sys.stderr)
  return 1 if failed else 0


if __name__ == '__main__':
  sys.exit(main())
