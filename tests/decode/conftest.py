"""Makes `history_model` importable, and compiles quickly: these programs are tiny."""

import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope='module')
def quick_compilation():
  """Leaves out XLA's optimisations, in this folder alone."""
  before = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', before)
