"""Makes `history_model` importable, and disables XLA optimisations for the tiny programs here."""

import jax
import pytest


@pytest.fixture(autouse=True, scope='module')
def quick_compilation():
  """Disables most XLA optimisations in this folder."""
  before = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', before)
