"""Seconds from a command to its result: imports, `check`, the first step, and compile time by depth.

python experiments/speed/start.py

The first step of configs/runs/quickstart.gin is measured with prepared data, without a compilation cache and with a
warm one. Compile time is that of the GPT of train_step.py by the number of layers, scanned and unrolled.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / 'configs/runs/quickstart.gin')
ONE_STEP = [
  f'--gin.{binding}'
  for binding in (
    'Trainer.num_steps=1',
    'Trainer.eval_every=0',
    'Trainer.eval_batches=1',
    'Trainer.log_every=1',
    'Cosine.warmup_steps=0',
    'Experiment.evaluations={}',
  )
]
COMPILE = """
import sys, time
sys.path.insert(0, {here!r})
import train_step
began = time.perf_counter()
train_step.t2x_steps('gpt', 'f32', {bindings!r})[1](1)
print(time.perf_counter() - began)
"""


def seconds(command: list[str], environment: dict[str, str]) -> float:
  """Returns the seconds that a command takes."""
  began = time.perf_counter()
  subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)
  return time.perf_counter() - began


def first_step(folder: str, number: int, environment: dict[str, str]) -> float:
  """Returns the seconds from the command to the log line of the first step."""
  out = f'{folder}/run-{number}'
  command = [sys.executable, '-m', 't2x', 'train', QUICKSTART, '--out', out, *ONE_STEP]
  began = time.perf_counter()
  process = subprocess.Popen(
    command,
    env=os.environ | environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  assert process.stdout is not None
  found = None
  for line in process.stdout:
    if found is None and line.startswith('step 1/1'):
      found = time.perf_counter() - began
  if process.wait() or found is None:
    raise SystemExit(f'{" ".join(command)} failed')
  return found


def compile_seconds(layers: int, unroll: int, folder: str) -> float:
  """Returns the seconds to trace, compile and take the first train step."""
  bindings = [f'num_layers={layers}', f'Stack.unroll={unroll}']
  script = COMPILE.format(here=str(Path(__file__).parent), bindings=bindings)
  done = subprocess.run(
    [sys.executable, '-c', script], check=True, capture_output=True, text=True, cwd=folder
  )
  return float(done.stdout)


def main() -> None:
  """Prints one JSON object."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--repeat', type=int, default=5)
  parser.add_argument('--depths', type=int, nargs='+', default=[6, 12, 24], metavar='N')
  args = parser.parse_args()
  python = [sys.executable]
  with tempfile.TemporaryDirectory() as folder:
    warm = {'T2X_CACHE': f'{folder}/cache'}
    off = warm | {'T2X_COMPILE_CACHE': 'off'}

    def median(command: list[str]) -> float:
      return round(statistics.median(seconds(command, warm) for _ in range(args.repeat)), 2)

    first_step(folder, 0, warm)  # Prepares the data and fills the compilation cache.
    cold = [first_step(folder, 1 + i, off) for i in range(args.repeat)]
    cached = [first_step(folder, 100 + i, warm) for i in range(args.repeat)]
    result = {
      'import_jax': median([*python, '-c', 'import jax']),
      'import_t2x': median([*python, '-c', 'import t2x']),
      'help': median([*python, '-m', 't2x', '--help']),
      'check_quickstart': median([*python, '-m', 't2x', 'check', QUICKSTART]),
      'first_step_without_compile_cache': round(statistics.median(cold), 2),
      'first_step_with_compile_cache': round(statistics.median(cached), 2),
    }
    for layers in args.depths:
      result[f'compile_{layers}_layers_scanned'] = round(compile_seconds(layers, 1, folder), 1)
      result[f'compile_{layers}_layers_unrolled'] = round(
        compile_seconds(layers, layers, folder), 1
      )
  print(json.dumps(result | {'load': round(os.getloadavg()[0], 1)}, indent=2))


if __name__ == '__main__':
  main()
