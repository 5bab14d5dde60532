"""Ranks and choices against loops over pairs of scores, with ties and NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.models.ranks import choice, exceeds, rank

# Many ties, some NaN, both infinities.
rng = np.random.default_rng(0)
SCORES = rng.integers(0, 4, (300, 5)).astype(np.float32)
SCORES[rng.random(SCORES.shape) < 0.05] = np.nan
SCORES[rng.random(SCORES.shape) < 0.05] = np.inf
SCORES[rng.random(SCORES.shape) < 0.05] = -np.inf
LABELS = rng.integers(0, 5, 300)


@pytest.mark.parametrize('array', [np.asarray, jnp.asarray])
def test_the_rank_counts_all_candidates_that_are_not_below(array):
  own = np.take_along_axis(SCORES, LABELS[:, None], axis=1)[:, 0]
  others = np.arange(5) != LABELS[:, None]
  found = rank(array(own), array(SCORES), array(others))
  for i, label in enumerate(LABELS):
    below = [bool(SCORES[i, j] < SCORES[i, label]) for j in range(5) if j != label]
    assert found[i] == 1 + below.count(False)
  assert len(set(np.asarray(found).tolist())) == 5


@pytest.mark.parametrize('array', [np.asarray, jnp.asarray])
def test_the_choice_is_the_only_candidate_that_exceeds_all_others(array):
  found = np.asarray(choice(array(SCORES)))
  for row, chosen in zip(SCORES, found, strict=True):
    winners = [
      j for j in range(5) if all(row[j] > row[k] for k in range(5) if k != j) and row[j] == row[j]
    ]
    assert [chosen] == (winners or [-1])
  assert set(found.tolist()) == {-1, 0, 1, 2, 3, 4}


def test_scores_within_the_rounding_are_equal():
  scores = np.array([[1.0, 1.0 + 1e-7, 0.5], [1.0, 1.1, 0.5]])
  assert choice(scores, 1e-6).tolist() == [-1, 1]
  assert choice(scores).tolist() == [1, 1]
  others = np.array([[True, False, True]])
  assert rank(scores[:, 1], scores, others, 1e-6).tolist() == [2, 1]
  assert exceeds(scores[:, 1], scores, 1e-6).tolist() == [[False, False, True], [True, False, True]]


def test_nan_is_no_choice_where_xla_fuses_the_maximum():
  """On a CPU the maximum of these sums is that of the other numbers."""
  a = np.zeros((64, 24), np.float32)
  a[:, 8] = np.nan
  a[:, 9] = 1

  def chosen(a):
    pairs = jnp.where(jnp.ones((24, 24), bool), a[:, :, None] + a[:, None, :], -3e9)
    return choice(pairs.reshape(len(a), -1))

  assert (np.asarray(jax.jit(chosen)(a)) == -1).all()


def test_any_number_of_dimensions_is_traced():
  scores = jnp.asarray(SCORES[:280].reshape(8, 7, 5, 5))
  np.testing.assert_array_equal(jax.jit(choice)(scores), choice(SCORES[:280]).reshape(8, 7, 5))
