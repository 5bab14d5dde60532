"""A padded vocabulary: the losses and gradients of the model without padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import FactorisedEmbedding, MultiHeadAttention, TokenEmbedding
from t2x.models import (
  Decoder,
  Encoder,
  EncoderDecoder,
  LanguageModel,
  LMHead,
  MaskedLMHead,
  MixtureOfSoftmaxes,
  TiedHead,
)

WIDTH, VOCAB, ROWS = 8, 23, 32
HEADS = {
  'tied': functools.partial(TiedHead, use_bias=True, soft_cap=3.0),
  'projection': functools.partial(LMHead, use_bias=True),
  'masked': MaskedLMHead,
  'mixture': functools.partial(MixtureOfSoftmaxes, num_softmaxes=2, head=LMHead),
}
EMBEDDINGS = {
  'table': TokenEmbedding,
  'factorised': functools.partial(FactorisedEmbedding, factor_dim=4),
}


def build(make, builder, multiple=1, embedding=TokenEmbedding, **settings):
  model = functools.partial(
    LanguageModel,
    d_model=WIDTH,
    embedding=functools.partial(embedding, vocab_size=VOCAB, vocab_multiple=multiple),
    body=functools.partial(Decoder, stack=make.stack(num_layers=1)),
    head=functools.partial(builder, **settings),
  )
  return make.built(model)


def padded_and_plain(make, *settings, **named):
  """A padded model whose padding is large, and the model with the other parameters."""
  padded, plain = build(make, *settings, 16, **named), build(make, *settings, **named)
  padded = jax.tree.map(lambda a: jnp.full(a.shape, 9.0), padded)
  leaves, structure = jax.tree.flatten(padded)
  leaves = [inside(a, b).set(b) for a, b in zip(leaves, jax.tree.leaves(plain), strict=True)]
  return jax.tree.unflatten(structure, leaves), plain


def inside(array, part):
  """The corner of `array` that has the shape of `part`."""
  return array.at[tuple(map(slice, part.shape))]


@functools.partial(jax.jit, static_argnames=('smoothing', 'z_loss'))
def gradients(model, x, labels, weights, **settings):
  def loss(model, x):
    sums = model.cross_entropy(x, labels, weights, **settings)
    return sums['loss'][0], sums

  return jax.grad(loss, argnums=(0, 1), has_aux=True)(model, x)


@pytest.mark.parametrize(
  ('head', 'embedding', 'chunk'),
  [
    *((head, 'table', 4) for head in HEADS),
    ('tied', 'factorised', 4),
    ('tied', 'table', None),
    ('mixture', 'table', None),
    # Without chunks these heads have the loss of the tied one.
    pytest.param('projection', 'table', None, marks=pytest.mark.nightly),
    pytest.param('masked', 'table', None, marks=pytest.mark.nightly),
    pytest.param('tied', 'factorised', None, marks=pytest.mark.nightly),
  ],
)
def test_loss_and_gradients_are_those_without_padding(make, head, embedding, chunk):
  settings = {'chunk': chunk}
  if head == 'mixture':
    settings = {'head': functools.partial(LMHead, chunk=chunk)}
  padded, plain = padded_and_plain(make, HEADS[head], embedding=EMBEDDINGS[embedding], **settings)
  assert padded.embedding.table.shape[0] == ROWS and padded.spec == plain.spec
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(2, 10, WIDTH)), jnp.float32)
  labels = jnp.asarray(rng.integers(0, VOCAB, (2, 10)))
  weights = jnp.asarray(rng.random((2, 10)) < 0.8, jnp.float32)
  terms = {'smoothing': 0.1} if head == 'mixture' else {'smoothing': 0.1, 'z_loss': 1e-2}
  (actual, sums), (expected, expected_sums) = (
    gradients(model, x, labels, weights, **terms) for model in (padded, plain)
  )
  assert padded.logits(x).shape == (2, 10, VOCAB)
  num_padded = 0
  for a, b in zip(
    jax.tree.leaves((actual, sums)), jax.tree.leaves((expected, expected_sums)), strict=True
  ):
    part = a[tuple(map(slice, b.shape))]
    np.testing.assert_allclose(part, b, rtol=1e-6, atol=1e-6 * max(1.0, float(jnp.abs(b).max())))
    np.testing.assert_array_equal(inside(a, b).set(0.0), 0.0)
    num_padded += a.shape != b.shape
  # Table, bias or both, and the mixture's own projection.
  assert num_padded == {'tied': 2, 'projection': 3, 'masked': 2, 'mixture': 2}[head]


def test_the_head_of_an_encoder_decoder_is_padded_as_the_target_embedding(make):
  def embedding(vocab_size, multiple):
    return functools.partial(TokenEmbedding, vocab_size=vocab_size, vocab_multiple=multiple)

  model = jax.eval_shape(
    lambda: EncoderDecoder(
      d_model=WIDTH,
      embedding=embedding(30, 1),
      target_embedding=embedding(VOCAB, 16),
      encoder=functools.partial(Encoder, stack=make.stack()),
      decoder=functools.partial(
        Decoder,
        stack=make.stack([make.block(cross=functools.partial(MultiHeadAttention, num_heads=2))]),
      ),
      head=LMHead,
      rngs=nnx.Rngs(0),
    )
  )
  assert model.embedding.table.shape == (30, WIDTH)
  assert model.target_embedding.table.shape == (ROWS, WIDTH)
  assert model.head.out.kernel.shape == (WIDTH, ROWS)
  assert model.spec.vocab_size == VOCAB
