"""This process on a CPU, set up before jax is imported: its memory allocator and its devices.

glibc's allocator is told not to fault its pages in anew at every step: 1.2 to 1.25 times as fast,
for about twice the resident memory. And each core is a device of its own, over which a batch is
split: XLA leaves cores idle in the many operations that are too small for several.
"""

import ctypes
import glob
import os
import sys

__all__ = ['prepare_host']

# mallopt(3): parameter, value.
SETTINGS = {
  'M_MMAP_MAX': (-4, 0),  # Large blocks come from the heap, too, ...
  'M_ARENA_MAX': (-8, 1),  # ... which all threads share ...
  'M_TRIM_THRESHOLD': (-1, -1),  # ... and which is never given back.
}
# More would not divide the batches that people train with on a CPU.
MAX_DEVICES = 8


def prepare_host() -> list[str]:
  """Sets allocator and devices, and says what it did, a line each.

  Does nothing where an accelerator does the work, or when jax has been imported.
  """
  return [_set_allocator(), _set_devices()]


def _set_allocator() -> str:
  """Also leaves things alone when T2X_ALLOCATOR=off, off glibc, under another allocator."""
  reason = _reason_not_to() or _allocator_reason_not_to()
  if reason is not None:
    return f'allocator: as it was ({reason})'
  libc = ctypes.CDLL(None)
  for parameter, value in SETTINGS.values():
    if not libc.mallopt(parameter, value):
      return 'allocator: as it was (mallopt refused)'
  return 'allocator: glibc, one arena, no mmap, no trimming (T2X_ALLOCATOR=off leaves it alone)'


def _set_devices() -> str:
  """The largest power of two of devices that this process has cores for; what is set stays."""
  name = 'JAX_NUM_CPU_DEVICES'
  reason = _reason_not_to() or (f'{name}={os.environ[name]}' if name in os.environ else None)
  if reason is not None:
    return f'devices: as it was ({reason})'
  number = min(1 << (_num_cores().bit_length() - 1), MAX_DEVICES)
  os.environ[name] = str(number)
  return f'devices: {number} on the CPU ({name}=1 makes it one)'


def _num_cores() -> int:
  try:
    return len(os.sched_getaffinity(0))
  except AttributeError:  # Not on Linux.
    return os.cpu_count() or 1


def _reason_not_to() -> str | None:
  if not _runs_on_cpu():
    return 'an accelerator does the work'
  if 'jax' in sys.modules:
    return 'jax was imported before'
  return None


def _allocator_reason_not_to() -> str | None:
  if os.environ.get('T2X_ALLOCATOR') == 'off':
    return 'T2X_ALLOCATOR=off'
  if not _is_glibc():
    return 'not glibc'
  preloaded = os.environ.get('LD_PRELOAD', '')
  return f'LD_PRELOAD={preloaded}' if 'malloc' in preloaded else None


def _is_glibc() -> bool:
  try:
    return sys.platform == 'linux' and (os.confstr('CS_GNU_LIBC_VERSION') or '').startswith('glibc')
  except (ValueError, OSError):
    return False


def _runs_on_cpu() -> bool:
  """What jax will choose, as far as can be told without it."""
  platforms = os.environ.get('JAX_PLATFORMS')
  if platforms:
    return platforms.split(',')[0] == 'cpu'
  return not any(map(glob.glob, ('/dev/nvidia[0-9]*', '/dev/accel*', '/dev/vfio/[0-9]*')))
