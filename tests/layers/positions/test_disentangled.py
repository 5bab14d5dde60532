"""Buckets of disentangled attention, and packed rows; the parity tests compare its scores with transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Disentangled, Tokens
from t2x.layers.positions.encoding import Projections


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


@pytest.mark.parametrize('scale', [1.0, 0.3])
def test_scores_are_both_terms_times_the_scale(scale):
  length, heads, size, span = 6, 2, 3, 3
  encoding = build(num_buckets=None, max_distance=span, norm=None)
  q, k = (jax.random.normal(jax.random.key(i), (1, length, heads, size)) for i in range(2))
  weights = [np.random.default_rng(i).normal(size=(4, heads, size)) for i in range(2)]
  of_q, of_k = (lambda x, w=w: jnp.einsum('rd,dhe->rhe', x, w) for w in weights)
  tokens = Tokens.row(length)
  project = Projections(of_q, of_k)
  scores = encoding.scores(q, k, tokens, tokens, scale=scale, project=project)
  table = np.asarray(encoding.table[...], np.float64)
  q, k = (np.asarray(a[0], np.float64) for a in (q, k))
  for h in range(heads):
    for i in range(length):
      for j in range(length):
        # Both terms read the row of i - j, as in DeBERTa's code.
        vector = table[int(np.clip(i - j + span, 0, 2 * span - 1))]
        expected = q[i, h] @ (vector @ weights[1][:, h]) + k[j, h] @ (vector @ weights[0][:, h])
        np.testing.assert_allclose(scores[0, h, i, j], scale * expected, atol=1e-5)
