"""Cross-entropy against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.models.losses import classification_sums, cross_entropy


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_cross_entropy_equals_the_smoothed_target_distribution(smoothing):
  rng = np.random.default_rng(0)
  logits, labels = rng.normal(size=(3, 4, 7)) * 3, rng.integers(0, 7, size=(3, 4))
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  target = (1 - smoothing) * np.eye(7)[labels] + smoothing / 7
  expected = -(target * log_probs).sum(-1)
  loss = cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(labels), smoothing)
  np.testing.assert_allclose(loss, expected, atol=2e-6)


def test_cross_entropy_of_bf16_logits_is_float32():
  loss = cross_entropy(jnp.zeros((2, 5), jnp.bfloat16), jnp.zeros(2, jnp.int32))
  assert loss.dtype == jnp.float32


def test_weight_zero_leaves_an_element_out():
  logits = jax.random.normal(jax.random.key(0), (4, 5))
  labels, weights = jnp.array([0, 1, 2, 3]), jnp.array([1.0, 0.0, 1.0, 0.0])
  sums = classification_sums(logits, labels, weights)
  kept = classification_sums(logits[::2], labels[::2], jnp.ones(2))
  for name in ('loss', 'accuracy'):
    np.testing.assert_allclose(sums[name], kept[name], rtol=1e-6)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_accuracy_matches_argmax_where_it_is_unique_and_ties_are_wrong(dtype):
  rng = np.random.default_rng(0)
  logits = rng.integers(0, 4, (200, 6)).astype(np.float32)  # Most rows have several largest logits.
  labels = rng.integers(0, 6, 200)
  sums = classification_sums(jnp.asarray(logits, dtype), jnp.asarray(labels), jnp.ones(200))
  unique = (logits == logits.max(axis=-1, keepdims=True)).sum(axis=-1) == 1
  assert 0 < unique.sum() < 150
  assert float(sums['accuracy'][0]) == ((logits.argmax(axis=-1) == labels) & unique).sum()
  broken = classification_sums(jnp.full((2, 6), jnp.nan), jnp.zeros(2, int), jnp.ones(2))
  assert float(broken['accuracy'][0]) == 0
