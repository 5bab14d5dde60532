"""Settings of JAX and XLA for NVIDIA GPUs, made in the environment before jax starts.

Variables that the user has set are never changed. T2X_GPU_FLAGS=off leaves all of them as they are.
"""

import glob
import importlib.util
import os
import sys

# Pipelined collectives and a scheduler that hides their latency are part of level O1 of XLA's GPU backend.
OPTIMIZATION_LEVEL = 'O1'
# JAX's own is 0.75. The rest is for CUDA's context, cuDNN and other libraries.
MEMORY_FRACTION = '0.92'
LATENCY_HIDING = '--xla_gpu_enable_latency_hiding_scheduler=true'
# Any of them is a choice of how memory is allocated.
_MEMORY = (
  'XLA_CLIENT_MEM_FRACTION',
  'XLA_PYTHON_CLIENT_MEM_FRACTION',
  'XLA_PYTHON_CLIENT_PREALLOCATE',
  'XLA_PYTHON_CLIENT_ALLOCATOR',
)
# Variables that change how programs run on a GPU, in the order in which they are printed.
VARIABLES = ('JAX_OPTIMIZATION_LEVEL', *_MEMORY, 'XLA_FLAGS')


def set_gpu_flags() -> str:
  """Sets the variables that are not set, if jax will run on NVIDIA GPUs, and returns a line for the log."""
  reason = _skip_reason()
  if reason is not None:
    return f'GPU flags: unchanged ({reason})'
  chosen = {}
  if 'JAX_OPTIMIZATION_LEVEL' not in os.environ:
    chosen['JAX_OPTIMIZATION_LEVEL'] = OPTIMIZATION_LEVEL
  if not any(name in os.environ for name in _MEMORY):
    chosen['XLA_CLIENT_MEM_FRACTION'] = MEMORY_FRACTION
  flags = os.environ.get('XLA_FLAGS', '')
  if num_gpus() > 1 and LATENCY_HIDING.partition('=')[0] not in flags:
    chosen['XLA_FLAGS'] = f'{flags} {LATENCY_HIDING}'.strip()
  os.environ.update(chosen)
  text = ' '.join(f'{name}={value}' for name, value in chosen.items()) or 'all set by the user'
  return f'GPU flags: {text} (T2X_GPU_FLAGS=off switches them off)'


def num_gpus() -> int:
  """Returns the number of NVIDIA GPUs that this process may use, without importing jax."""
  present = len(glob.glob('/dev/nvidia[0-9]*'))
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is None:
    return present
  return min(present, sum(name.strip() not in ('', '-1') for name in visible.split(',')))


def environment_flags() -> str:
  """Returns the variables that are set for GPUs as 'NAME=value ...', by the user or by `set_gpu_flags`."""
  return ' '.join(f'{name}={os.environ[name]}' for name in VARIABLES if name in os.environ)


def _skip_reason() -> str | None:
  if os.environ.get('T2X_GPU_FLAGS') == 'off':
    return 'T2X_GPU_FLAGS=off'
  platforms = os.environ.get('JAX_PLATFORMS')
  if platforms and platforms.split(',')[0] not in ('cuda', 'gpu'):
    return f'JAX_PLATFORMS={platforms}'
  if not num_gpus():
    return 'no NVIDIA GPU'
  if not any(importlib.util.find_spec(f'jax_cuda{version}_plugin') for version in (12, 13)):
    return "jax's CUDA plugin is not installed"
  if 'jax' in sys.modules:
    return 'jax is already imported'
  return None
