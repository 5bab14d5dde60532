"""Buckets of disentangled attention, and packed rows; the parity tests compare its scores with transformers."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.errors import UserError
from t2x.layers import Disentangled


def build(**settings):
  return Disentangled(4, rngs=nnx.Rngs(0), **settings)


def test_near_distances_have_a_row_each_and_far_ones_share_rows():
  rows = np.asarray(build(num_buckets=8, max_distance=32).row(jnp.arange(-40, 41)))
  row = dict(zip(range(-40, 41), rows.tolist(), strict=True))
  assert [row[d] for d in range(-4, 5)] == list(range(4, 13))
  assert row[5] == row[7] == 13 and row[31] == row[40] == 15
  assert (row[-31], row[-32], row[-40]) == (1, 0, 0)
  assert (np.diff(rows) >= 0).all() and rows.min() == 0


def test_without_buckets_distances_are_clipped():
  rows = np.asarray(build(num_buckets=None, max_distance=3).row(jnp.arange(-5, 6)))
  assert rows.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5]


@pytest.mark.parametrize('num_buckets', [7, 2, 64])
def test_sizes_that_do_not_fit_are_refused(num_buckets):
  with pytest.raises(UserError, match=rf'num_buckets = {num_buckets} must be even'):
    build(num_buckets=num_buckets, max_distance=64)
