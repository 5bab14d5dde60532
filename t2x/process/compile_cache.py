"""JAX's persistent compilation cache: a run that starts again does not compile again.

Programs are kept in `compiled` in t2x's cache folder ($T2X_CACHE, or ~/.cache/t2x), at most `MAX_BYTES` of them; the
least recently used are deleted first.
"""

import os
import sys
from pathlib import Path

MAX_BYTES = 10 * 2**30


def set_compile_cache() -> str:
  """Switches the compilation cache on for this process and returns a line for its log.

  The cache stays as it is with T2X_COMPILE_CACHE=off, where JAX_COMPILATION_CACHE_DIR is set already, and after jax
  has been imported.
  """
  if os.environ.get('T2X_COMPILE_CACHE') == 'off':
    return 'compile cache: off (T2X_COMPILE_CACHE=off)'
  if folder := os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    return f'compile cache: {folder} (JAX_COMPILATION_CACHE_DIR)'
  if 'jax' in sys.modules:
    return 'compile cache: unchanged (jax was imported before)'
  folder = str(Path(os.environ.get('T2X_CACHE') or Path.home() / '.cache' / 't2x') / 'compiled')
  os.environ['JAX_COMPILATION_CACHE_DIR'] = folder
  os.environ.setdefault('JAX_COMPILATION_CACHE_MAX_SIZE', str(MAX_BYTES))
  # Small programs count too: a run has dozens of them, and each takes a fraction of a second.
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
  return f'compile cache: {folder} (T2X_COMPILE_CACHE=off switches it off)'
