"""The mixture against its formula in float64, tied and untied, and inside a model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.layers import TokenEmbedding, normal
from t2x.models import LMHead, MixtureOfSoftmaxes, TiedHead

VOCAB, WIDTH = 11, 8
X = jax.random.normal(jax.random.key(0), (2, 3, WIDTH))


def softmax(z):
  p = np.exp(z - z.max(-1, keepdims=True))
  return p / p.sum(-1, keepdims=True)


def parts(make, head, num_softmaxes=3):
  mixture = functools.partial(
    MixtureOfSoftmaxes, WIDTH, VOCAB, num_softmaxes=num_softmaxes, head=head, init=normal(0.5)
  )
  embedding = functools.partial(TokenEmbedding, WIDTH, vocab_size=VOCAB)
  return make.built(mixture), make.built(embedding, seed=1)


@pytest.mark.parametrize('head', [TiedHead, LMHead])
def test_log_probabilities_match_the_formula(head, make, compared):
  mixture, embedding = parts(make, head)
  table = embedding.table[...].T if head is TiedHead else mixture.head.out.kernel[...]
  table, x, prior, latent, bias = (
    np.asarray(a, np.float64)
    for a in (
      table,
      X,
      mixture.prior.kernel[...],
      mixture.latent.kernel[...],
      mixture.latent.bias[...],
    )
  )
  expected = np.zeros((2, 3, VOCAB))
  for k, weight in enumerate(np.moveaxis(softmax(x @ prior), -1, 0)):
    expected += weight[..., None] * softmax(np.tanh(x @ latent[:, k] + bias[k]) @ table)
  got = mixture(X, embedding)
  assert got.dtype == jnp.float32
  system = 'mixture of softmaxes', 'NumPy, float64'
  compared(*system, np.exp(got), expected, rtol=1e-7, atol=1e-6)
  np.testing.assert_allclose(jax.nn.log_softmax(got), got, atol=1e-5)


def test_the_table_is_tied_or_not(make):
  for head, tied in ((TiedHead, True), (LMHead, False)):
    mixture, embedding = parts(make, head)
    gradient = jax.grad(lambda e, m=mixture: m(X, e)[..., 3].sum())(embedding)
    assert bool(jnp.abs(gradient.table[...]).max() > 1e-3) == tied


def test_gradients_are_those_without_the_scan(make):
  mixture, embedding = parts(make, TiedHead)

  def plain(mixture):
    latents = jnp.tanh(mixture.latent(X))
    logits = jnp.stack([embedding.attend(latents[..., k, :]) for k in range(3)], -2)
    weights = jax.nn.softmax(mixture.prior(X))[..., None]
    return jnp.log((weights * jax.nn.softmax(logits)).sum(-2))

  ours, theirs = (
    jax.grad(lambda m, f=f: jnp.square(f(m)).sum())(mixture)
    for f in (lambda m: m(X, embedding), plain)
  )
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)


def test_its_rank_is_not_that_of_one_softmax(make):
  x = jax.random.normal(jax.random.key(5), (1, 40, WIDTH))

  def rank(num_softmaxes):
    mixture, embedding = parts(make, TiedHead, num_softmaxes)
    return np.linalg.matrix_rank(np.asarray(mixture(x, embedding)[0]), tol=1e-3)

  # Logits of rank WIDTH at most, and the normaliser.
  assert rank(1) <= WIDTH + 1 < rank(3) <= VOCAB


def test_a_model_has_it_as_its_head(make):
  head = functools.partial(MixtureOfSoftmaxes, num_softmaxes=2)
  model = make.built(functools.partial(make.language_model(), head=head))
  logits = model(make.ids((2, 5))).x
  np.testing.assert_allclose(jnp.exp(logits).sum(-1), 1.0, atol=1e-5)


def test_no_softmax_is_refused(make):
  with pytest.raises(UserError, match='num_softmaxes'):
    parts(make, TiedHead, 0)
