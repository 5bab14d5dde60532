"""Compiles the train step of models larger than this machine, for fake CPU devices.

  python experiments/scale/compile_only.py            # both cases in sequence
  python experiments/scale/compile_only.py gpt3_175b  # one case

Each case runs in a separate process. Without weights or data, the step is lowered from shapes and
shardings and compiled, but never run. Prints the seconds, and the memory per device from XLA's
`memory_analysis`. The size of the temporaries is an upper bound, because XLA for CPUs computes bfloat16
products in float32 and fuses less than XLA for GPUs and TPUs.

Measured on 2026-11-21 on two cores (busy with other work), Python 3.11, jax 0.10.2, flax 0.12.8:

  gpt3_175b, fsdp 32 x tensor 8, 256 devices, 1536 rows of 2048 tokens in 16 micro-batches: lowered in
    3.6 s, compiled in 23.6 s, 0.7 GB resident. Per device: arguments (the state, donated) 7.64 GiB,
    temporaries 29.0 GiB, 36.6 GiB in total.
  llama3_70b, data 2 x fsdp 256, 512 devices, 1024 rows of 8192 tokens in 2 micro-batches: lowered in
    18 s, compiled in 405 s (the machine busy), 1.2 GB resident. Per device: arguments
    3.08 GiB, temporaries 44.3 GiB, 47.4 GiB in total.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Name -> (number of fake devices, mesh file, bindings beyond the model file). Vocabularies are padded to
# sizes that divide over the mesh.
CASES = {
  'gpt3_175b': (
    256,
    'fsdp_tensor',
    [
      'Mesh.tensor=8',
      'TokenEmbedding.vocab_size=50304',
      'CausalLM.length=2048',
      'Trainer.batch_size=1536',
      'Trainer.accumulate=16',
    ],
  ),
  'llama3_70b': (
    512,
    'hsdp',
    [
      'Mesh.data=2',
      "Stack.remat='full'",
      'CausalLM.length=8192',
      'Trainer.batch_size=1024',
      'Trainer.accumulate=2',
    ],
  ),
}

SHARED = [
  'Experiment.task=@CausalLM()',
  'CausalLM.source=@StandardLibrary()',
  'CausalLM.tokenizer=@Bytes()',
  'Experiment.trainer=@Trainer()',
  'Trainer.num_steps=1000',
  "Trainer.compute_dtype='bfloat16'",
]


def compile_step(name: str) -> None:
  """Lowers and compiles the train step of a case, and prints its times and memory."""
  devices, mesh_file, overrides = CASES[name]
  os.environ |= {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': str(devices)}
  import jax

  from t2x.api import read_config
  from t2x.parallel.report import format_bytes
  from t2x.train import TrainProgram

  files = [ROOT / f'configs/models/{name}.gin', ROOT / f'configs/meshes/{mesh_file}.gin']
  experiment = read_config(files, SHARED + overrides).build()
  _, task, trainer = experiment.complete()
  program = TrainProgram(experiment)
  mesh, state = program.mesh, program.abstract
  sizes = ' x '.join(f'{axis} {size}' for axis, size in mesh.shape.items() if size > 1)
  tokens = trainer.batch_size * task.length
  print(f'{name}, {mesh_file}: {sizes}, {devices} devices, jax {jax.__version__}', flush=True)
  print(f'  batch {trainer.batch_size} x {task.length} = {tokens:,} tokens, in ', end='')
  print(f'{trainer.accumulate} micro-batches, {trainer.compute_dtype}', flush=True)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
  start = time.monotonic()
  jitted = jax.jit(program.step(), donate_argnums=0, out_shardings=(shardings, None))
  lowered = jitted.lower(state, program.frozen, program.batch())
  print(f'  lowered in {time.monotonic() - start:.1f} s', flush=True)
  start = time.monotonic()
  compiled = lowered.compile()
  print(f'  compiled in {time.monotonic() - start:.1f} s', flush=True)
  memory = compiled.memory_analysis()
  own = memory.output_size_in_bytes - memory.alias_size_in_bytes
  byte_counts = {
    'arguments': memory.argument_size_in_bytes,
    'temporaries': memory.temp_size_in_bytes,
    'output': memory.output_size_in_bytes,
    'of which donated arguments': memory.alias_size_in_bytes,
    'total per device': memory.argument_size_in_bytes + memory.temp_size_in_bytes + own,
  }
  for part, size in byte_counts.items():
    print(f'  {part:28}{format_bytes(size):>10}', flush=True)


def main() -> int:
  """Runs each case in a separate process. Returns the exit code of the first that fails, or 0."""
  names = sys.argv[1:] or list(CASES)
  if len(names) == 1:
    compile_step(names[0])
    return 0
  for name in names:
    done = subprocess.run([sys.executable, __file__, name], check=False)
    if done.returncode:
      return done.returncode
  return 0


if __name__ == '__main__':
  sys.exit(main())
