"""Measures the training throughput of a config on a random batch, without data, tokenizer or checkpoints.

python experiments/speed/throughput.py configs/models/gpt2_small.gin experiments/speed/gpt2_bf16.gin
python experiments/speed/throughput.py configs/runs/quickstart.gin --gin.Trainer.compute_dtype=bfloat16

Prints one JSON object: tokens (or examples) per second, milliseconds per step, model FLOPs utilisation
(MFU, relative to --peak-tflops) and the peak memory of a device. The loss should decrease, because every
step uses the same batch.
"""

import argparse
import json
import statistics
import sys
import time

from t2x.allocator import set_allocator


def random_batch(program, seed: int = 0):
  """Returns a batch of the task's shapes: each row is one segment, tokens and labels are random.

  Args:
    program: the TrainProgram of a config.
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


def measure(program, steps: int, peak: float | None) -> dict:
  """Trains on one batch and returns the measurements to print."""
  import jax

  from t2x.train.flops import flops_per_token, row_lengths

  experiment, model = program.experiment, program.blueprint.shapes
  task, trainer = experiment.task, experiment.trainer
  batch, (state, frozen) = random_batch(program), program.init(trainer.seed)
  train_step = program.train_step()
  start = time.perf_counter()
  state, out = train_step(state, frozen, batch)
  losses = [out.loss]
  compiled = time.perf_counter() - start
  times = []
  # Timed in groups of ten steps, within which the device does not wait for Python.
  for _ in range(max(1, steps // 10)):
    start = time.perf_counter()
    for _ in range(10):
      state, out = train_step(state, frozen, batch)
    losses.append(out.loss)
    times.append((time.perf_counter() - start) / 10)
  seconds = statistics.median(times)
  lengths = row_lengths(task, model)
  tokens = trainer.batch_size * sum(lengths.values())
  flops = flops_per_token(task, model).full * tokens
  units = trainer.batch_size if task.unit == 'examples' else tokens
  memory = jax.local_devices()[0].memory_stats() or {}
  return {
    'device': f'{jax.device_count()} x {jax.devices()[0].device_kind}',
    'jax': jax.__version__,
    'compute_dtype': trainer.compute_dtype,
    f'{task.unit}_per_second': round(units / seconds, 1),
    'milliseconds_a_step': round(1e3 * seconds, 3),
    'compile_seconds': round(compiled, 1),
    'tflops': round(flops / seconds / 1e12, 3),
    'mfu': round(flops / seconds / 1e12 / peak, 4) if peak else None,
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
    '--peak-tflops', type=float, help='peak of all devices together; 989 for one H100 or H200'
  )
  args, bindings = parser.parse_known_args()
  if unknown := [binding for binding in bindings if not binding.startswith('--gin.')]:
    parser.error(f'unknown arguments: {" ".join(unknown)}')
  set_allocator()
  from t2x.api import read_config
  from t2x.errors import UserError
  from t2x.train import TrainProgram

  try:
    experiment = read_config(args.files, [b.removeprefix('--gin.') for b in bindings]).build()
    program = TrainProgram(experiment)
  except UserError as error:
    print(error, file=sys.stderr)
    return error.exit_code
  print(json.dumps(measure(program, args.steps, args.peak_tflops)))
  return 0


if __name__ == '__main__':
  sys.exit(main())
