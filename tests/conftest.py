"""Every test runs on the CPU, with the jaxtyping annotations of t2x checked at run time.

Compiling is nearly all that the tests do: it is done without optimisation, and kept.
"""

import importlib.metadata
import os
from pathlib import Path

os.environ.update(
  {
    'JAX_PLATFORMS': 'cpu',
    'JAX_DISABLE_MOST_OPTIMIZATIONS': 'true',
    # The older compiler's fusion emitters take most of its time; the newer one has nothing else.
    'XLA_FLAGS': '--xla_cpu_use_fusion_emitters=false'
    if importlib.metadata.version('jax').startswith('0.10.')
    else '',
    'JAX_COMPILATION_CACHE_DIR': str(Path(__file__).parents[1] / '.pytest_cache' / 'xla'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.1',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }
  | os.environ
)

import jaxtyping

jaxtyping.install_import_hook('t2x', 'beartype.beartype')
