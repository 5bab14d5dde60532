"""What is drawn for a row in a train step (dropout, stochastic depth, MixUp) does not depend on micro-batches."""

import jax
import jax.numpy as jnp
import pytest
from loss_terms import assert_close, gradient
from random_rows import EXPERIMENTS, batch_of_rows

# With every commit, the contract `rows_are_independent` checks the dropout of single mixers,
# tests/models/test_reversible.py compares the keys of a reversible stack with those of its equations, and
# tests/multi_device/test_gradients.py compares two micro-batches of the images on eight devices with the whole
# batch on one.
RARELY = ('mixers', 'a reversible stack', 'images with MixUp')


@pytest.mark.parametrize(
  'name',
  [pytest.param(n, marks=pytest.mark.nightly if n in RARELY else ()) for n in EXPERIMENTS],
)
def test_micro_batches_change_neither_the_loss_nor_the_gradient(name):
  """To float32 rounding: 5e-6 of the largest entry of each array, for sums in another order through 20 sublayers."""
  task, model = EXPERIMENTS[name]()
  batch = batch_of_rows(task)
  whole, metrics = gradient(task, model, batch)
  assert max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(whole)) > 1e-3
  accumulated, same = gradient(task, model, batch, 4)
  assert_close(accumulated, whole, 5e-6)
  assert_close(same, metrics, 5e-6)
