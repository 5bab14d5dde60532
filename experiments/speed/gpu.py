"""What t2x does on one NVIDIA GPU in nine minutes: a killed run that resumes, a sweep, the cost of the loop, speed.

python experiments/speed/gpu.py --wheels wheels     # writes rows to $OUT, or to results/gpu/
python experiments/speed/gpu.py --wheels wheels --sections sizes parts
python experiments/speed/gpu.py --smoke             # all of it at tiny sizes on a CPU, in about three minutes

Runs in a bare checkout with jax, flax, optax, orbax-checkpoint and scipy. The other packages that t2x imports come as
wheels from a folder, which one makes where there is internet; they are pure Python:

  pip download --no-deps -d wheels -r experiments/speed/gpu_wheels.txt

Sections, in this order, with their minutes:

  resume    2    a GPT of 19 million parameters trains, is killed by SIGKILL and resumes: batches and losses beside
                 those of uninterrupted runs, with and without XLA's deterministic operations
  sweep     2.5  four variants of it with three seeds each: verdicts, cost per trial, trials per hour
  overhead  1.5  the train loop of GPT-2 124M with data, logging and checkpoints beside its bare step
  sizes     2    GPT-2 of 124M, 350M and 1.3B: tokens per second, MFU, memory; torch.compile, where PyTorch is installed
  profile   0.5  the thirty operations of a step of 124M that take the most time
  parts     0.5  generation, a layer of experts, kernels of attention and sums against references

Time that a section leaves is for the next ones. Rows are written as they are measured, as JSON lines and as tables; a
part that does not fit into the time is a row that says so.

MFU is model FLOPs per second over the peak of the device (bf16, dense). Model FLOPs per token are 6 N + 6 L d (T + 1),
where N are the parameters in matrices, the tied head included: a query sees (T + 1) / 2 keys on average. `mfu_full`
counts all pairs of tokens, 6 N + 12 L d T.
"""

import argparse
import contextlib
import datetime
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpu_machine import Clocks, first_gpu, machine, missing, unpack

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Section -> minutes, and its parts, each of which is a process.
SECTIONS = {
  'resume': (2.0, ('resume',)),
  'sweep': (2.5, ('sweep',)),
  'overhead': (1.5, ('overhead',)),
  'sizes': (2.0, ('124M', '350M', '1.3B', 'torch 124M', 'torch 350M')),
  'profile': (0.5, ('profile',)),
  'parts': (0.5, ('parts',)),
}
# Parts that would repeat others at the same tiny size.
NOT_IN_SMOKE = ('350M', '1.3B', 'torch 350M')
# Time in which a part has results: it imports jax, starts the GPU and compiles.
LEAST_SECONDS = 15
# A smoke test may run on a busy machine: its sections have so many times their minutes.
SMOKE_FACTOR = 10


class Results:
  """Rows, written to OUT/NAME.jsonl and OUT/NAME.md whenever one is added.

  Args:
    out: the folder.
    name: name of the files.
    fixed: columns of every row.
    clocks: samples of the clock, which are columns of every row.
  """

  def __init__(self, out: Path, name: str, fixed: dict, clocks: Clocks):
    out.mkdir(parents=True, exist_ok=True)
    self.lines, self.table = out / f'{name}.jsonl', out / f'{name}.md'
    self.fixed, self.clocks = fixed, clocks
    self.rows: list[dict] = []

  def add(self, **row: object) -> None:
    """Adds a row of a section, prints it and writes it."""
    self.rows.append({**row, **self.clocks.row(), **self.fixed})
    print('  '.join(f'{key} {value}' for key, value in row.items()), flush=True)
    with self.lines.open('a') as file:
      file.write(json.dumps(self.rows[-1]) + '\n')
    self.table.write_text(self.markdown())

  def markdown(self) -> str:
    """Returns one table per section, after the columns that are the same in all rows."""
    conventions = (__doc__ or '').partition('MFU is')
    text = [f'# {self.fixed["gpu"]}\n', *(f'- {k}: {v}' for k, v in self.fixed.items()), '']
    text.append(f'{conventions[1]}{conventions[2]}')
    tables: dict[str, list[dict]] = {}
    for row in self.rows:
      title = ': '.join(row[key] for key in ('section', 'group') if key in row)
      tables.setdefault(title, []).append(row)
    for title, rows in tables.items():
      hidden = {'section', 'group', *self.fixed}
      names = [n for n in dict.fromkeys(n for row in rows for n in row) if n not in hidden]
      lines = [names, ['---'] * len(names), *([row.get(n) for n in names] for row in rows)]
      text.append(f'## {title}\n')
      text += [f'| {" | ".join(cell(value) for value in line)} |' for line in lines] + ['']
    return '\n'.join(text)


def cell(value: object) -> str:
  """Returns a value as the text of a cell."""
  return '' if value is None else str(value).replace('|', r'\|').replace('\n', ' ')


def emit(**row: object) -> None:
  """Hands a row of results to the parent process."""
  print('ROW ' + json.dumps(row), flush=True)


def run_part(part: str, smoke: bool, seconds: float, work: Path) -> None:
  """Runs a part in this process."""
  if part in ('resume', 'sweep'):
    import gpu_runs

    return getattr(gpu_runs, part)(emit, smoke, seconds, work)
  if not part.startswith('torch'):
    from t2x.process.compile_cache import set_compile_cache
    from t2x.process.gpu_flags import set_gpu_flags

    set_gpu_flags()
    set_compile_cache()
  import gpu_speed
  from gpu_models import SIZES, TINY

  if part in ('overhead', 'profile'):
    return getattr(gpu_speed, part)(emit, smoke, seconds)
  if part == 'parts':
    return parts(smoke)
  name = part.removeprefix('torch ')
  size, steps = (TINY, 10) if smoke else (SIZES[name], 50 if name == '124M' else 20)
  measure = gpu_speed.torch_training if part.startswith('torch') else gpu_speed.training
  return measure(functools.partial(emit, size=name), size, steps)


def parts(smoke: bool) -> None:
  """Measures generation, experts and kernels; one that fails is a row.

  Raises:
    RuntimeError: one has failed.
  """
  import gpu_checks
  import gpu_speed

  failed = []
  for measure in (
    gpu_speed.generation,
    gpu_speed.experts,
    gpu_checks.check_attention,
    gpu_checks.check_sums,
  ):
    try:
      measure(functools.partial(emit, group=measure.__name__.removeprefix('check_')), smoke)
    except Exception as error:
      failed.append(measure.__name__)
      emit(what=f'{measure.__name__} failed: {type(error).__name__}: {str(error)[:300]}', repeats=0)
  if failed:
    raise RuntimeError(f'{", ".join(failed)} failed')


def in_process(part: str, smoke: bool, seconds: float, work: Path, add: Callable) -> str | None:
  """Runs a part in a process of its own; returns the reason of its failure, or None."""
  command = [sys.executable, __file__, '--run', part, '--work', str(work / part.replace(' ', '-'))]
  command += ['--seconds', str(round(seconds, 1)), *(['--smoke'] if smoke else [])]
  began = time.monotonic()
  with (
    tempfile.TemporaryFile('w+') as errors,
    subprocess.Popen(
      command,
      stdout=subprocess.PIPE,
      stderr=errors,
      text=True,
      process_group=0,
      env=os.environ if part.startswith('torch') else without_torch(work),
    ) as process,
  ):
    timer = threading.Timer(seconds, end_group, (process,))
    timer.start()
    try:
      for line in process.stdout:
        if line.startswith('ROW '):
          add(**json.loads(line[4:]))
      code = process.wait()
    finally:
      timer.cancel()
      end_group(process)  # With the processes that it has started.
    print(f'{part}: {time.monotonic() - began:.0f} s', flush=True)
    if code == 0:
      return None
    if time.monotonic() - began >= seconds:
      time.sleep(1)  # Until the driver has freed the memory of the GPU.
      return 'not finished: the time is up'
    errors.seek(0)
    lines = [line for line in errors.read().splitlines() if line.strip()]
    print('\n'.join(lines[-15:]), file=sys.stderr)
    return f'failed with exit code {code}: {lines[-1][:600] if lines else "no output"}'


def without_torch(work: Path) -> dict[str, str]:
  """Returns the environment of t2x, which must not import PyTorch: tensorboardX does where it is installed."""
  folder = work / 'without_torch'
  folder.mkdir(exist_ok=True)
  (folder / 'torch.py').write_text("raise ImportError('t2x needs no PyTorch')\n")
  path = os.pathsep.join([str(folder), os.environ['PYTHONPATH']])
  return os.environ | {'PYTHONPATH': path}


def end_group(process: subprocess.Popen) -> None:
  """Kills a process and those that it has started."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)


def run_sections(
  chosen: list[str], smoke: bool, minutes: float, work: Path, results: Results
) -> bool:
  """Runs sections, each until the sum of the minutes up to it; returns whether one failed or has a wrong result."""
  began, failed = time.monotonic(), False
  factor = 60 * (SMOKE_FACTOR if smoke else 1)
  deadline, planned = began + 60 * minutes, began
  for section in chosen:
    own = factor * SECTIONS[section][0]
    names = [name for name in SECTIONS[section][1] if not (smoke and name in NOT_IN_SMOKE)]
    planned = min(planned + own, deadline)
    for part in names:
      add = functools.partial(results.add, section=section)
      seconds = planned - time.monotonic()
      if seconds < max(LEAST_SECONDS, own / 2 if part == names[0] else 0):
        add(what=f'left out: {part} does not fit into the time, {max(0, seconds):.0f} s', repeats=0)
        continue
      results.clocks.restart()
      if reason := in_process(part, smoke, seconds, work, add):
        failed = failed or not reason.startswith('not finished')
        add(what=f'{part}: {reason}', repeats=0)
  return failed or any(wrong(row) for row in results.rows)


def wrong(row: dict) -> bool:
  """Returns whether a row has a result that is not as it must be."""
  return str(row.get('result', '')).startswith(('WRONG', 'FAILED', 'not '))


def environment(args: argparse.Namespace, work: Path, gpu: str | None) -> dict[str, str]:
  """Returns the environment of all processes.

  Raises:
    ValueError: a package is missing.
  """
  site = work / 'site'
  if args.wheels is not None:
    unpack(args.wheels, site)
  folders = [str(site), str(ROOT), str(HERE / 'configs')]
  if names := missing([*folders, *sys.path]):
    raise ValueError(
      f'not installed: {", ".join(names)}. Where there is internet: pip download --no-deps -d wheels -r '
      'experiments/speed/gpu_wheels.txt; then here: --wheels wheels'
    )
  path = [*folders, *filter(None, [os.environ.get('PYTHONPATH')])]
  variables = {'PYTHONPATH': os.pathsep.join(path), 'T2X_CACHE': str(work / 'cache')}
  if args.smoke:
    variables |= {'JAX_PLATFORMS': 'cpu', 'JAX_DISABLE_MOST_OPTIMIZATIONS': 'true'}
  elif gpu is not None:
    variables['CUDA_VISIBLE_DEVICES'] = gpu
  return variables


def main() -> int:
  """Runs the sections and returns 1 if one failed, 2 if the machine or the packages are not there."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--minutes', type=float, help='time limit of all sections (default: 9)')
  parser.add_argument('--sections', nargs='+', metavar='NAME', choices=SECTIONS, default=[])
  parser.add_argument('--wheels', type=Path, metavar='FOLDER', help='wheels of gpu_wheels.txt')
  parser.add_argument('--smoke', action='store_true', help='tiny sizes, on a CPU')
  parser.add_argument('--out', type=Path, default=os.environ.get('OUT'), metavar='FOLDER')
  for name, kind in (('run', str), ('seconds', float), ('work', Path)):
    parser.add_argument(f'--{name}', type=kind, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.run:
    run_part(args.run, args.smoke, args.seconds, args.work)
    return 0
  # Ends the processes that it has started.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  gpu = None if args.smoke else first_gpu()
  if gpu is None and not args.smoke:
    print('gpu.py: nvidia-smi shows no GPU; --smoke runs on a CPU', file=sys.stderr)
    return 2
  minutes = args.minutes if args.minutes is not None else 9 * (SMOKE_FACTOR if args.smoke else 1)
  chosen = [name for name in SECTIONS if not args.sections or name in args.sections]
  with tempfile.TemporaryDirectory() as name:
    try:
      os.environ.update(environment(args, Path(name), gpu))
    except ValueError as error:
      print(f'gpu.py: {error}', file=sys.stderr)
      return 2
    fixed, clocks = machine(gpu), Clocks(gpu)
    now = datetime.datetime.now().strftime('%Y-%m-%d-%H%M%S')
    kind = 'smoke' if args.smoke else re.sub(r'\W+', '-', str(fixed['gpu'])).lower()
    out = Path(args.out or (Path(tempfile.gettempdir()) if args.smoke else HERE / 'results/gpu'))
    results = Results(out, f'{kind}-{now}', fixed | {'date': now}, clocks)
    print(f'{results.table}: {fixed}', flush=True)
    try:
      failed = run_sections(chosen, args.smoke, minutes, Path(name), results)
    finally:
      clocks.close()
  return int(failed)


if __name__ == '__main__':
  sys.exit(main())
