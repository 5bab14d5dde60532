"""Measures the training throughput of a config on a random batch, without data, tokenizer or checkpoints.

python experiments/speed/throughput.py configs/models/gpt2_small.gin experiments/speed/gpt2_bf16.gin
python experiments/speed/throughput.py configs/runs/quickstart.gin --gin.Trainer.compute_dtype=bfloat16

Prints one JSON object: tokens (or examples) per second, milliseconds per step, model FLOPs per second and their share
of the peak of the devices (MFU; see t2x/train/logs/flops.py for the convention and the peaks), seconds to trace and
lower the train step and to compile it, size of the compiled program, and peak memory of a device. The loss should
decrease, because every step uses the same batch.
"""

import argparse
import json
import re
import statistics
import sys
import time

from t2x.process.allocator import set_allocator


def random_batch(program, seed: int = 0):
  """Returns a batch of the task's shapes: each row is one segment, tokens and labels are random.

  Args:
    program: the Program of a config.
    seed: of the random numbers.
  """
  import jax
  import numpy as np

  rng = np.random.default_rng(seed)
  model, task = program.blueprint.shapes, program.experiment.task
  classes = model.spec.num_classes or model.spec.vocab_size
  batch = {}
  for name, leaf in program.batch().items():
    shape = leaf.shape
    if name.endswith('segments') or name.startswith('weight'):
      value = np.ones(shape)
    elif name == 'masked_positions':
      value = np.sort(rng.integers(0, task.length, shape), -1)
    elif name.endswith('positions'):
      value = np.broadcast_to(np.arange(shape[-1]), shape)
    elif np.issubdtype(leaf.dtype, np.floating):
      value = rng.normal(size=shape)
    else:
      value = rng.integers(0, classes, shape)
    batch[name] = jax.device_put(value.astype(leaf.dtype), leaf.sharding)
  return batch


def compile_step(program) -> dict:
  """Compiles the train step of a Program, and returns the time and the size of the program.

  The size is the number of instructions of the optimised program, with those inside fusions, the bytes of its machine
  code on a device (0 on CPUs, which do not report it), and the bytes of its temporary arrays.
  """
  start = time.perf_counter()
  lowered = program.lower_step()
  traced = time.perf_counter()
  compiled = lowered.compile()
  end = time.perf_counter()
  memory = compiled.memory_analysis()
  return {
    'trace_seconds': round(traced - start, 2),
    'compile_seconds': round(end - traced, 2),
    'instructions': len(re.findall(r'^ +(?:ROOT )?%\S+ = ', compiled.as_text(), re.MULTILINE)),
    'code_bytes': memory.generated_code_size_in_bytes,
    'temporary_bytes': memory.temp_size_in_bytes,
  }


def measure(program, steps: int, peak: float | None) -> dict:
  """Trains on one batch and returns the measurements to print."""
  import jax

  from t2x.train.program import peak_flops, step_flops

  task, trainer = program.experiment.task, program.experiment.trainer
  batch, (state, frozen) = random_batch(program), program.init(trainer.seed)
  compilation = compile_step(program)
  train_step = program.train_step()
  state, out = train_step(state, frozen, batch)
  losses = [out.loss]
  times = []
  # Timed in groups of ten steps, within which the device does not wait for Python.
  for _ in range(max(1, steps // 10)):
    start = time.perf_counter()
    for _ in range(10):
      state, out = train_step(state, frozen, batch)
    losses.append(out.loss)
    times.append((time.perf_counter() - start) / 10)
  seconds = statistics.median(times)
  tokens = trainer.batch_size * sum(program.row_lengths.values())
  units = trainer.batch_size if task.unit == 'examples' else tokens
  flops, peak = step_flops(program) / seconds, peak or peak_flops(program)
  memory = jax.local_devices()[0].memory_stats() or {}
  return {
    'device': f'{jax.device_count()} x {jax.devices()[0].device_kind}',
    'jax': jax.__version__,
    'compute_dtype': trainer.compute_dtype,
    f'{task.unit}_per_second': round(units / seconds, 1),
    'milliseconds_a_step': round(1e3 * seconds, 3),
    **compilation,
    'tflops': round(flops / 1e12, 3),
    'mfu': round(flops / peak, 4) if peak else None,
    'peak_gigabytes': round(memory['peak_bytes_in_use'] / 1e9, 2) if memory else None,
    'first_loss': losses[0],
    'last_loss': losses[-1],
  }


def main() -> int:
  """Measures the config given on the command line and prints the result."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('files', nargs='+', help='gin files with a model, a task and a trainer')
  parser.add_argument('--steps', type=int, default=100)
  parser.add_argument(
    '--peak-tflops',
    type=float,
    help='peak of all devices together (default: bfloat16 peak of known devices)',
  )
  args, bindings = parser.parse_known_args()
  if unknown := [binding for binding in bindings if not binding.startswith('--gin.')]:
    parser.error(f'unknown arguments: {" ".join(unknown)}')
  set_allocator()
  from t2x.base.errors import UserError
  from t2x.experiments import read_config
  from t2x.train import Program

  try:
    experiment = read_config(args.files, [b.removeprefix('--gin.') for b in bindings]).build()
    program = Program(experiment)
  except UserError as error:
    print(error, file=sys.stderr)
    return error.exit_code
  print(json.dumps(measure(program, args.steps, args.peak_tflops and 1e12 * args.peak_tflops)))
  return 0


if __name__ == '__main__':
  sys.exit(main())
