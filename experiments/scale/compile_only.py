"""Compiles the train step of models far larger than this machine, on devices that are not there.

  python experiments/scale/compile_only.py            # both, one after the other
  python experiments/scale/compile_only.py gpt3_175b  # one of them

Each runs in a process of its own with fake CPU devices. No weights and no data exist: the step is
lowered from shapes and shardings, compiled, and never run. Printed are the seconds and what one
device holds, as XLA's `memory_analysis` has it. XLA for CPUs computes bfloat16 products in float32
and fuses less than its siblings: take the temporaries as an upper bound.

Measured on 2026-11-21 on two cores (busy with other work), Python 3.11, jax 0.10.2, flax 0.12.8:

  gpt3_175b, fsdp 32 x tensor 8, 256 devices, 1536 rows of 2048 tokens in 16 parts: lowered in 3.6 s,
    compiled in 23.6 s, 0.7 GB resident. A device: arguments (the state, donated) 7.64 GiB,
    temporaries 29.0 GiB, 36.6 GiB in all.
  llama3_70b, data 2 x fsdp 256, 512 devices, 1024 rows of 8192 tokens in 2 parts: lowered in 18 s,
    compiled in 405 s (the machine busy), 1.2 GB resident. A device: arguments
    3.08 GiB, temporaries 44.3 GiB, 47.4 GiB in all.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Name -> fake devices, mesh file, and what the model file leaves open. Vocabularies are padded to
# what divides.
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
  """Lowers and compiles the train step of a case, and prints what it took."""
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
  print(f'{trainer.accumulate} parts, {trainer.compute_dtype}', flush=True)
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
  told = {
    'arguments': memory.argument_size_in_bytes,
    'temporaries': memory.temp_size_in_bytes,
    'output': memory.output_size_in_bytes,
    'of which donated arguments': memory.alias_size_in_bytes,
    'a device': memory.argument_size_in_bytes + memory.temp_size_in_bytes + own,
  }
  for what, size in told.items():
    print(f'  {what:28}{format_bytes(size):>10}', flush=True)


def main() -> int:
  """Each case in a process of its own; the exit code of the first that fails."""
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
