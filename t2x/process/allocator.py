"""Configuration of glibc's memory allocator for training on CPUs and for the workers that prepare data.

The settings avoid page faults at every step: training is 1.2 to 1.25 times as fast and needs about twice the
resident memory.
"""

import ctypes
import glob
import os
import sys

# mallopt(3): parameter, value.
SETTINGS = {
  'M_MMAP_MAX': (-4, 0),  # Allocates large blocks on the heap, not with mmap.
  'M_ARENA_MAX': (-8, 1),  # One heap for all threads.
  'M_TRIM_THRESHOLD': (-1, -1),  # Never returns heap memory to the system.
}


def set_allocator() -> str:
  """Configures the allocator of this process, unless jax will run on an accelerator.

  Returns:
    One line for the log.
  """
  if not _runs_on_cpu():
    return 'allocator: unchanged (not on a CPU)'
  return set_worker_allocator()


def set_worker_allocator() -> str:
  """Configures the allocator of this process, which prepares data for any device.

  Does nothing if T2X_ALLOCATOR=off, without glibc, with another allocator (LD_PRELOAD), or after jax was
  imported, because its threads already have their own arenas.

  Returns:
    One line for the log.
  """
  reason = _skip_reason()
  if reason is not None:
    return f'allocator: unchanged ({reason})'
  libc = ctypes.CDLL(None)
  for parameter, value in SETTINGS.values():
    if not libc.mallopt(parameter, value):
      return 'allocator: unchanged (mallopt failed)'
  return 'allocator: glibc, one arena, no mmap, no trimming (to disable: T2X_ALLOCATOR=off)'


def _skip_reason() -> str | None:
  if os.environ.get('T2X_ALLOCATOR') == 'off':
    return 'T2X_ALLOCATOR=off'
  if not _is_glibc():
    return 'not glibc'
  preloaded = os.environ.get('LD_PRELOAD', '')
  if 'malloc' in preloaded:
    return f'LD_PRELOAD={preloaded}'
  if 'jax' in sys.modules:
    return 'jax is already imported'
  return None


def _is_glibc() -> bool:
  try:
    return sys.platform == 'linux' and (os.confstr('CS_GNU_LIBC_VERSION') or '').startswith('glibc')
  except (ValueError, OSError):
    return False


def _runs_on_cpu() -> bool:
  """Predicts whether jax will run on the CPU, without importing it."""
  platforms = os.environ.get('JAX_PLATFORMS')
  if platforms:
    return platforms.split(',')[0] == 'cpu'
  return not any(map(glob.glob, ('/dev/nvidia[0-9]*', '/dev/accel*', '/dev/vfio/[0-9]*')))
