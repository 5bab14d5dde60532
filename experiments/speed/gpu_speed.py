"""Speed on a GPU: the training loop beside its bare step, sizes of GPT-2, PyTorch, a profile, generation, experts."""

import dataclasses
import importlib.util
import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpu_models import SIZES, TINY, Size, device_limits, experiment_of

Emit = Callable[..., None]


def overhead(emit: Emit, smoke: bool, seconds: float) -> None:
  """Measures the bare step on one batch, then runs with logging and checkpoints, in rounds while time remains."""
  from host_overhead import time_step

  from t2x.train import TrainingRun

  size, every = (TINY, 20) if smoke else (SIZES['124M'], 100)
  deadline = time.monotonic() + seconds
  runs = {
    f'a checkpoint every {every} steps, log_every {every // 10}': {
      'log_every': every // 10,
      'checkpoint_every': every,
    },
    f'no checkpoints, log_every {every // 10}': {'log_every': every // 10},
    f'no checkpoints, log_every {every}': {'log_every': every},
  }
  with tempfile.TemporaryDirectory() as name:
    experiment = experiment_of(size, num_steps=2 * every)
    run = TrainingRun(experiment, Path(name) / 'step')
    bare, times = [], {what: [] for what in runs}
    for number in itertools.count():
      began = time.monotonic()
      bare.append(time_step(run, every // 2)[0])
      middle = statistics.median(bare)
      emit(what='bare step', milliseconds=round(middle, 3), repeats=len(bare), batch=size.batch)
      for what, settings in runs.items():
        folder = Path(name) / f'{number} {what}'
        milliseconds, waited = loop_time(size, every, folder, run.program, settings)
        times[what].append(milliseconds)
        now = statistics.median(times[what])
        emit(
          what=what,
          milliseconds=round(now, 3),
          percent_above_bare=round(100 * (now / middle - 1), 2),
          checkpoint_blocks=waited,
          repeats=len(times[what]),
          batch=size.batch,
        )
      if smoke or time.monotonic() + 1.2 * (time.monotonic() - began) > deadline:
        return


def loop_time(size: Size, every: int, folder: Path, program, settings: dict) -> tuple[float, str]:
  """Trains 2 `every` steps with data; returns the milliseconds of a step in the second half, and how long checkpoints
  blocked it."""
  from t2x.train import train

  train(experiment_of(size, num_steps=2 * every, **settings), folder, '', program=program)
  lines = [json.loads(line) for line in (folder / 'timing.jsonl').open()]
  ends = {line['step']: line['seconds'] for line in lines if line['split'] == 'train'}
  waits = [line['waited'] for line in lines if 'waited' in line and line['step'] == every]
  # Checkpoints of these models are large.
  shutil.rmtree(folder)
  return 1e3 * (ends[2 * every] - ends[every]) / every, ', '.join(f'{w:.3f} s' for w in waits)


def training(emit: Emit, size: Size, steps: int) -> None:
  """Measures bare train steps on one random batch; halves the batch until it fits."""
  from throughput import measure

  from t2x.train import Program
  from t2x.train.logs.flops import flops_per_token
  from t2x.train.logs.summary import attention_kernels

  while True:
    try:
      program = Program(experiment_of(size))
      result = measure(program, steps, None)
      break
    except Exception as error:
      if 'RESOURCE_EXHAUSTED' not in str(error) or size.batch < 2:
        raise
      emit(what='out of memory', batch=size.batch, repeats=1)
      size = dataclasses.replace(size, batch=size.batch // 2)
  task, model = program.experiment.task, program.blueprint.shapes
  emit(
    what='t2x',
    batch=size.batch,
    length=size.length,
    repeats=max(1, steps // 10),
    **rates(size, result['tokens_per_second'], device_limits()[0]),
    milliseconds=result['milliseconds_a_step'],
    gigabytes=result['peak_gigabytes'],
    # Short, if a section before has compiled the same step.
    compile_seconds=result['compile_seconds'],
    losses=f'{result["first_loss"]:.3f} to {result["last_loss"]:.3f}',
    flops_per_token=size.flops(),
    counted_flops=flops_per_token(task, model).visible,
    kernel='; '.join(attention_kernels(model, task, 'bfloat16')),
  )


def rates(size: Size, tokens_per_second: float, peak: float | None) -> dict:
  """Returns tokens per second and MFU by both conventions."""
  row = {'tokens_per_second': round(tokens_per_second)}
  for name, all_pairs in (('mfu', False), ('mfu_full', True)):
    row[name] = peak and round(tokens_per_second * size.flops(all_pairs) / peak, 4)
  return row


def torch_training(emit: Emit, size: Size, steps: int) -> None:
  """Measures the plain GPT of torch_models.py: bf16 autocast, fused AdamW; compiled, and on a CPU as it is."""
  if importlib.util.find_spec('torch') is None:
    return emit(what='left out: torch is not installed', repeats=0)
  import torch
  from torch_models import GPT

  from t2x.train.logs.flops import PEAK_FLOPS

  on_gpu = torch.cuda.is_available()
  device = 'cuda' if on_gpu else 'cpu'
  torch.manual_seed(0)
  batch = {'tokens': torch.randint(size.vocab, (size.batch, size.length), device=device)}
  model = GPT(size.width, size.layers, size.heads, 4 * size.width, size.vocab, size.length)
  model = model.to(device)
  optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
  run = torch.compile(model) if on_gpu else model

  def take(number: int) -> float:
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

  compile_seconds = take(3) * 3
  seconds = statistics.median(take(10) for _ in range(max(1, steps // 10)))
  peak = PEAK_FLOPS.get(torch.cuda.get_device_name()) if on_gpu else None
  return emit(
    what=f'PyTorch {torch.__version__}, {"torch.compile" if on_gpu else "not compiled"}',
    batch=size.batch,
    length=size.length,
    repeats=max(1, steps // 10),
    **rates(size, size.batch * size.length / seconds, peak),
    milliseconds=round(1e3 * seconds, 3),
    gigabytes=round(torch.cuda.max_memory_allocated() / 1e9, 2) if on_gpu else None,
    compile_seconds=round(compile_seconds, 2),
  )


def profile(emit: Emit, smoke: bool, seconds: float) -> None:
  """Traces steps of a run (`Trainer.profile_steps`) and emits the thirty operations with the largest times."""
  from t2x.train import train
  from t2x.train.logs.profiler import read_trace

  first, last = 8, 12
  steps, size = last - first + 1, TINY if smoke else SIZES['124M']
  with tempfile.TemporaryDirectory() as name:
    train(experiment_of(size, num_steps=last + 1, profile_steps=(first, last)), Path(name), '')
    summed = read_trace(Path(name) / 'profile')
  total = sum(operation.milliseconds for operation in summed.values())
  largest = sorted(summed.items(), key=lambda item: (-item[1].milliseconds, item[0]))[:30]
  for what, calls, milliseconds in [
    (f'all {len(summed)} operations', sum(o.calls for o in summed.values()), total),
    *((name, operation.calls, operation.milliseconds) for name, operation in largest),
  ]:
    emit(
      what=what,
      calls_per_step=round(calls / steps, 3),
      milliseconds=round(milliseconds / steps, 4),
      share=round(milliseconds / total, 4),
      repeats=steps,
    )


def generation(emit: Emit, smoke: bool) -> None:
  """Measures greedy generation against the bound of the memory's bandwidth."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  from flax import nnx

  from t2x.decode import generate

  size = TINY if smoke else SIZES['124M']
  batch, prompt, new = (4, 8, 8) if smoke else (64, 64, 192)
  build = experiment_of(size).bound().model
  model = jax.jit(lambda: jax.tree.map(lambda x: x.astype(jnp.bfloat16), build(rngs=nnx.Rngs(0))))()
  ids = np.random.default_rng(0).integers(2, size.vocab, (batch, prompt))
  repeats = 3

  def seconds(tokens: int) -> float:
    times = []
    for _ in range(repeats + 1):
      start = time.perf_counter()
      out = generate(
        model, ids, np.full(batch, prompt), max_new_tokens=tokens, eos_id=None, pad_id=0
      )
      jax.block_until_ready(out.tokens)
      times.append(time.perf_counter() - start)
    return min(times[1:])

  step = (seconds(new) - seconds(1)) / (new - 1)
  # A step reads the weights and the keys and values of the tokens so far (the mean over the steps).
  weights, cache = (
    2 * size.matrices,
    2 * 2 * size.layers * batch * (prompt + new / 2) * size.width,
  )
  bandwidth = device_limits()[1]
  bound = bandwidth and (weights + cache) / bandwidth
  emit(
    what=f'generation, batch {batch}, prompt {prompt}, {new} new tokens, greedy, bf16',
    milliseconds=round(1e3 * step, 4),
    tokens_per_second=round(batch / step),
    megabytes_read=round((weights + cache) / 1e6),
    share_of_bandwidth=bound and round(bound / step, 4),
    repeats=repeats,
  )


def experts(emit: Emit, smoke: bool) -> None:
  """Measures a layer of experts beside a dense layer of the same FLOPs per token (experts.py)."""
  from experts import SIZES as LAYERS
  from experts import measure

  rounds = 1 if smoke else 10
  for row in measure(LAYERS['smoke' if smoke else 'gpu'], 4 if smoke else 8, rounds):
    row.pop('load', None)
    emit(what=row.pop('contender'), **row, repeats=rounds)
