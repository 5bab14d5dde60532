"""Checks and measures t2x on one NVIDIA GPU in eight minutes: kernels, training, generation, and PyTorch beside it.

python experiments/speed/gpu.py                    # writes h200.json and h200.md to $OUT, or to results/
python experiments/speed/gpu.py --smoke            # all of it at tiny sizes on a CPU, within a minute
python experiments/speed/gpu.py --sections 'checks' 'train 124M'

Needs jax, flax, optax and orbax only, and no installation of t2x. Each section runs in a process of its own, and its
rows are written as they come, so that a run that is cut short keeps them.

MFU is model FLOPs per second over the peak of the device (bf16, dense). Model FLOPs per token are
6 N + 6 L d (T + 1), where N are the parameters in matrices, the tied head included: a query sees (T + 1) / 2 keys on
average. `mfu_full` counts all pairs of tokens, 6 N + 12 L d T. The bandwidth of generation counts, per token step, the bf16 weights once and the keys and
values of the tokens so far (the mean over the steps).
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from gpu_models import (
  GOALS,
  SIZES,
  TINY,
  Size,
  device_limits,
  experiment_of,
  language_model,
  stand_in_for_packages,
)

HERE = Path(__file__).resolve().parent
# From a bare checkout, t2x is not installed.
sys.path.insert(0, str(HERE.parents[1]))


def emit(**row) -> None:
  """Hands a row of results to the parent process."""
  print('ROW ' + json.dumps(row), flush=True)


def training_row(size: Size, tokens_per_second: float) -> dict:
  """Returns tokens per second and MFU."""
  row, limits = {'tokens_per_second': round(tokens_per_second)}, device_limits()
  for name, all_pairs in (('mfu', False), ('mfu_full', True)):
    row[name] = limits and round(tokens_per_second * size.flops(all_pairs) / limits[0], 4)
  return row


def training(name: str, size: Size, steps: int, packed: bool = False, sustained: int = 0) -> None:
  """Measures bare steps on one batch, then `sustained` steps of a run with data, logging and checkpoints."""
  from throughput import measure

  from t2x.train import Program, train
  from t2x.train.logs.flops import flops_per_token
  from t2x.train.logs.summary import attention_kernels

  while True:
    try:
      program = Program(experiment_of(size, max(sustained, 1), packed))
      result = measure(program, steps, None)
      break
    except Exception as error:
      if 'RESOURCE_EXHAUSTED' not in str(error) or size.batch < 2:
        raise
      emit(section=name, what='out of memory', batch=size.batch)
      size = dataclasses.replace(size, batch=size.batch // 2)
  task, model = program.experiment.task, program.blueprint.shapes
  emit(
    section=name,
    what='packed rows, one batch' if packed else 'one batch',
    batch=size.batch,
    **training_row(size, result['tokens_per_second']),
    milliseconds=result['milliseconds_a_step'],
    compile_seconds=result['compile_seconds'],
    gigabytes=result['peak_gigabytes'],
    losses=f'{result["first_loss"]:.3f} to {result["last_loss"]:.3f}',
    goal=GOALS.get(name.removeprefix('train ')),
    flops_per_token=size.flops(),
    counted_flops=flops_per_token(task, model).visible,
    kernel='; '.join(attention_kernels(model, task, 'bfloat16')),
  )
  if sustained:
    with tempfile.TemporaryDirectory() as folder:
      train(program.experiment, Path(folder), 'random tokens', program=program)
      lines = [json.loads(line) for line in (Path(folder) / 'timing.jsonl').open()]
    times = [(line['step'], line['seconds']) for line in lines if line['split'] == 'train']
    (first, began), (last, ended) = times[0], times[-1]
    rate = (last - first) * size.batch * size.length / (ended - began)
    what = f'steps {first} to {last} with data, logging and checkpoints'
    emit(section=name, what=what, batch=size.batch, **training_row(size, rate))


def decode(name: str, size: Size, batch: int, prompt: int, new: int) -> None:
  """Measures greedy generation against the bound of the memory's bandwidth."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  from flax import nnx

  from t2x.decode import generate

  build = language_model(size)
  model = jax.jit(lambda: jax.tree.map(lambda x: x.astype(jnp.bfloat16), build(rngs=nnx.Rngs(0))))()
  ids = np.random.default_rng(0).integers(2, size.vocab, (batch, prompt))

  def seconds(tokens: int) -> float:
    times = []
    for _ in range(4):
      start = time.perf_counter()
      out = generate(
        model, ids, np.full(batch, prompt), max_new_tokens=tokens, eos_id=None, pad_id=0
      )
      jax.block_until_ready(out.tokens)
      times.append(time.perf_counter() - start)
    return min(times[1:])

  step = (seconds(new) - seconds(1)) / (new - 1)
  weights = 2 * size.matrices
  cache = 2 * 2 * size.layers * batch * (prompt + new / 2) * size.width
  limits = device_limits()
  bound = limits and (weights + cache) / limits[1]
  emit(
    section=name,
    what=f'batch {batch}, prompt {prompt}, {new} new tokens, greedy, bf16',
    milliseconds_per_step=round(1e3 * step, 4),
    tokens_per_second=round(batch / step),
    megabytes_of_weights=round(weights / 1e6),
    megabytes_of_cache=round(cache / 1e6),
    bound_milliseconds=bound and round(1e3 * bound, 4),
    share_of_bandwidth=bound and round(bound / step, 4),
    goal=0.6,
  )


def torch_training(name: str, size: Size, steps: int) -> None:
  """Measures the plain GPT of torch_models.py: bf16 autocast, fused AdamW; eager, then compiled."""
  if importlib.util.find_spec('torch') is None:
    return emit(section=name, what='torch is not installed')
  import torch
  from torch_models import GPT

  from t2x.train.logs.flops import PEAK_FLOPS

  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  peak = PEAK_FLOPS.get(torch.cuda.get_device_name()) if device == 'cuda' else None
  torch.manual_seed(0)
  batch = {'tokens': torch.randint(size.vocab, (size.batch, size.length), device=device)}
  for what in ('eager', 'torch.compile')[: 2 if device == 'cuda' else 1]:
    model = GPT(size.width, size.layers, size.heads, 4 * size.width, size.vocab, size.length)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    run = torch.compile(model) if what == 'torch.compile' else model

    def take(number, model=model, optimizer=optimizer, run=run):
      start = time.perf_counter()
      for _ in range(number):
        with torch.autocast(device, torch.bfloat16):
          loss = run(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
      loss.item()
      return (time.perf_counter() - start) / number

    take(3)
    rate = size.batch * size.length / min(take(steps) for _ in range(3))
    row = {'tokens_per_second': round(rate)}
    if peak is not None:
      row['mfu'] = round(rate * size.flops() / peak, 4)
    emit(section=name, what=f'PyTorch {torch.__version__} {what}', batch=size.batch, **row)
    del model, optimizer, run
  return None


def sections(smoke: bool) -> dict:
  """Returns name -> function of each section, in their order."""
  from gpu_checks import check_attention, check_sums

  sizes = dict.fromkeys(SIZES, TINY) if smoke else SIZES
  small = sizes['124M']
  steps, sustained = (10, 30) if smoke else (50, 200)
  new = 8 if smoke else 192
  table = {
    'checks of attention': lambda name: check_attention(name, emit, smoke),
    'checks of sums': lambda name: check_sums(name, emit, smoke),
    'train 124M': lambda name: training(name, small, steps, sustained=sustained),
    'generate 124M': lambda name: decode(name, small, *((4, 8) if smoke else (64, 64)), new),
    'train 350M': lambda name: training(name, sizes['350M'], steps // 2),
    'train 1.3B': lambda name: training(name, sizes['1.3B'], steps // 2),
    'packed 124M': lambda name: training(name, small, steps // 2, packed=True),
    'experts 124M': lambda name: training(name, dataclasses.replace(small, experts=8), steps // 2),
    'torch 124M': lambda name: torch_training(name, small, steps // 2),
    'torch 350M': lambda name: torch_training(name, sizes['350M'], steps // 2),
  }
  if smoke:
    # They would repeat the others at the same tiny size.
    del table['train 350M'], table['train 1.3B'], table['torch 350M']
  return table


def run_section(name: str, smoke: bool) -> None:
  """Runs a section in this process."""
  if name.startswith('torch'):
    stand_in_for_packages()
  else:
    from t2x.process.gpu_flags import environment_flags, set_gpu_flags

    set_gpu_flags()
    stand_in_for_packages()
    import jax

    device = f'{jax.device_count()} x {jax.devices()[0].device_kind}, jax {jax.__version__}'
    emit(section=name, what=f'{device}, {environment_flags() or "no flags"}')
  sections(smoke)[name](name)


def markdown(rows: list[dict]) -> str:
  """Formats the rows as one table per section."""
  text = [f'# GPU results\n\n{__doc__.rpartition("MFU is")[1]}{__doc__.rpartition("MFU is")[2]}']
  for section in dict.fromkeys(row['section'] for row in rows):
    own = [
      {k: v for k, v in row.items() if k != 'section'} for row in rows if row['section'] == section
    ]
    names = list(dict.fromkeys(name for row in own for name in row))
    lines = [names, ['---'] * len(names), *([row.get(n, '') for n in names] for row in own)]
    text.append(f'## {section}\n')
    text += [f'| {" | ".join(map(str, line))} |' for line in lines] + ['']
  return '\n'.join(text)


def main() -> int:
  """Runs the sections until the time is up, and writes their rows; returns 1 if a section failed."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--smoke', action='store_true', help='tiny sizes, on a CPU')
  parser.add_argument('--minutes', type=float, default=7.8, help='time limit of all sections')
  parser.add_argument('--sections', nargs='+', metavar='NAME', help='some of the sections')
  parser.add_argument('--out', type=Path, default=os.environ.get('OUT') or HERE / 'results')
  parser.add_argument('--run', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.run:
    run_section(args.run, args.smoke)
    return 0
  if args.smoke:
    os.environ.update(JAX_PLATFORMS='cpu', JAX_DISABLE_MOST_OPTIMIZATIONS='true')
  deadline, rows, failed = time.monotonic() + 60 * args.minutes, [], []
  args.out = Path(args.out)
  args.out.mkdir(parents=True, exist_ok=True)

  def add(row: dict) -> None:
    rows.append(row)
    print('  '.join(f'{key} {value}' for key, value in row.items()), flush=True)
    (args.out / 'h200.json').write_text(json.dumps(rows, indent=1))
    (args.out / 'h200.md').write_text(markdown(rows))

  for name in args.sections or section_names(args.smoke):
    if (seconds := deadline - time.monotonic()) < 5:
      add({'section': name, 'what': 'not run: the time is up'})
    elif reason := in_process(name, args.smoke, seconds, add):
      failed.append(name)
      add({'section': name, 'what': reason})
  return 1 if failed else 0


def section_names(smoke: bool) -> list[str]:
  """Returns the names of the sections."""
  return list(sections(smoke))


def in_process(name: str, smoke: bool, seconds: float, add) -> str | None:
  """Runs a section in a process of its own; returns the reason of its failure, or None."""
  command = [sys.executable, __file__, '--run', name, *(['--smoke'] if smoke else [])]
  began = time.monotonic()
  with (
    tempfile.TemporaryFile('w+') as errors,
    subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
  ):
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    for line in process.stdout:
      if line.startswith('ROW '):
        add(json.loads(line[4:]))
    code = process.wait()
    timer.cancel()
    print(f'{name}: {time.monotonic() - began:.0f} s', flush=True)
    if code == 0:
      return None
    if time.monotonic() - began >= seconds:
      return 'not finished: the time is up'
    errors.seek(0)
    lines = [line for line in errors.read().splitlines() if line.strip()]
    print('\n'.join(lines[-15:]), file=sys.stderr)
    return f'failed with exit code {code}: {lines[-1][:300] if lines else "no output"}'


if __name__ == '__main__':
  sys.exit(main())
