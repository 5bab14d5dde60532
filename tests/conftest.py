"""Every test runs on the CPU, with the jaxtyping annotations of t2x checked at run time.

Compiling is nearly all that the tests do: it is done without optimisation, and kept.
"""

import contextlib
import importlib.metadata
import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

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
import pytest

jaxtyping.install_import_hook('t2x', 'beartype.beartype')


@pytest.fixture
def metrics():
  """`metrics(folder)` reads metrics.jsonl without what depends on the clock."""

  def read(folder: Path) -> list[dict]:
    lines = (folder / 'metrics.jsonl').read_text().splitlines()
    return [
      {name: value for name, value in json.loads(line).items() if not name.endswith('_per_second')}
      for line in lines
    ]

  return read


@pytest.fixture
def full_disk():
  """`with full_disk(size)`: no file grows beyond `size` bytes."""

  @contextlib.contextmanager
  def full(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
      # Modules that Python compiles meanwhile would be cut off too, and stay so.
      with mock.patch.object(sys, 'dont_write_bytecode', True):
        yield
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, before)

  return full
