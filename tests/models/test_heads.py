"""What is made of hidden vectors: one vector of a row, and logits over classes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import MLP, MultiHeadAttention, TokenEmbedding, normal
from t2x.layers.building import Scale, building
from t2x.models import (
  AttentionPool,
  Classifier,
  PooledClassifier,
  SequenceClassifier,
  TiedHead,
  TokenClassifier,
  first_token,
  last_token,
  mean_tokens,
)

X = jax.random.normal(jax.random.key(0), (2, 5, 4))
TABLE = TokenEmbedding(4, vocab_size=7, rngs=nnx.Rngs(0))
SEGMENTS = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize('ratio', [1.0, 4.0])
def test_a_scaled_tied_head_divides_by_the_root_of_the_width_of_the_base(ratio):
  with building(scale=Scale(ratio)):
    head = TiedHead(4, 7, scaled=True, rngs=nnx.Rngs(0))
    plain = TiedHead(4, 7, rngs=nnx.Rngs(0))
  expected = np.asarray(plain(X, TABLE)) / np.sqrt(4 / ratio)
  np.testing.assert_allclose(head(X, TABLE), expected, rtol=1e-5)


def built(pool, **settings):
  return pool(4, **settings, rngs=nnx.Rngs(0))


ATTENTION = functools.partial(
  AttentionPool,
  attention=functools.partial(MultiHeadAttention, num_heads=2, dropout_rate=0.5),
  feed_forward=functools.partial(MLP, hidden_dim=6),
)


@pytest.mark.parametrize('pool', [first_token, last_token, mean_tokens, ATTENTION])
def test_padding_changes_nothing_in_the_vector_of_a_row(pool):
  pool = built(pool)
  noise = X + 10.0 * (SEGMENTS == 0)[..., None]
  np.testing.assert_allclose(pool(X, SEGMENTS), pool(noise, SEGMENTS), rtol=1e-6)
  np.testing.assert_allclose(pool(X, SEGMENTS)[:1], pool(X[:1, :3]), rtol=1e-6)
  np.testing.assert_allclose(pool(X, SEGMENTS)[1:], pool(X[1:]), rtol=1e-6)


def test_the_vectors_are_the_first_the_last_and_the_mean():
  np.testing.assert_array_equal(built(first_token)(X, SEGMENTS), X[:, 0])
  np.testing.assert_array_equal(built(last_token)(X, SEGMENTS), jnp.stack([X[0, 2], X[1, 4]]))
  np.testing.assert_allclose(built(mean_tokens)(X, SEGMENTS)[0], X[0, :3].mean(0), rtol=1e-6)


def test_attention_of_a_learned_query_has_dropout():
  pool, key = built(ATTENTION), jax.random.key(0)
  assert jnp.abs(pool(X, SEGMENTS, key) - pool(X, SEGMENTS)).max() > 1e-3


def test_the_mean_of_a_long_bfloat16_row_counts_every_token():
  x = jnp.ones((1, 512, 4), jnp.bfloat16)
  for count in (257, 300, 511):
    segments = (jnp.arange(512) < count).astype(jnp.int32)[None]
    np.testing.assert_array_equal(np.asarray(built(mean_tokens)(x, segments), np.float32), 1.0)


def test_a_row_of_padding_has_a_finite_mean():
  assert jnp.isfinite(built(mean_tokens)(X, jnp.zeros_like(SEGMENTS))).all()


def test_the_pooled_classifier_is_a_projection_tanh_and_a_linear_layer():
  head = PooledClassifier(4, num_classes=3, init=normal(1.0), rngs=nnx.Rngs(0))
  x = X[:, 0]
  pooled = np.tanh(x @ head.transform.kernel[...] + head.transform.bias[...][None])
  np.testing.assert_allclose(
    head(x), pooled @ head.out.kernel[...] + head.out.bias[...][None], rtol=1e-5
  )


@pytest.mark.parametrize('kind', [Classifier, PooledClassifier])
def test_dropout_applies_only_in_training(kind):
  head = kind(4, num_classes=3, dropout_rate=0.5, init=normal(1.0), rngs=nnx.Rngs(0))
  x = X[:, 0]
  np.testing.assert_array_equal(head(x), head(x))
  assert not np.allclose(head(x, jax.random.key(1)), head(x))


def test_a_sequence_classifier_stays_a_head_over_the_vocabulary():
  def classifier(d_model, *, rngs):
    return Classifier(d_model, num_classes=3, init=normal(1.0), rngs=rngs)

  head = SequenceClassifier(4, 7, pool=last_token, classifier=classifier, rngs=nnx.Rngs(0))
  assert head.num_classes == 3
  assert head(X, TABLE).shape == (2, 5, 7)
  expected = head.classifier(built(last_token)(X, SEGMENTS))
  np.testing.assert_array_equal(head.classify(X, SEGMENTS), expected)


def test_a_token_classifier_gives_each_token_its_logits():
  head = TokenClassifier(4, 7, num_classes=3, rngs=nnx.Rngs(0))
  assert head(X, TABLE).shape == (2, 5, 3)
