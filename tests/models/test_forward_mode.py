"""Forward-mode derivatives of models that are traced with plain operations."""

import functools

import jax
import jax.numpy as jnp
import pytest

from t2x.layers import LearnedGrid, MultiHeadAttention, PatchEmbedding, T5Bias
from t2x.layers.one_cpu import plain_operations
from t2x.models import Classifier, Decoder, Encoder, VisionTransformer


def losses(make):
  """Returns a model and its loss by name."""
  cross = functools.partial(MultiHeadAttention, num_heads=4)
  bias = functools.partial(T5Bias, num_heads=4, bidirectional=False)
  decoder = functools.partial(Decoder, stack=make.stack([make.block(cross=cross)]), encoding=bias)
  encoder = functools.partial(Encoder, stack=make.stack())
  image = functools.partial(
    VisionTransformer,
    d_model=make.width,
    embedding=functools.partial(PatchEmbedding, patch_size=2, channels=1),
    body=encoder,
    positions=functools.partial(LearnedGrid, height=2, width=2),
    head=functools.partial(Classifier, num_classes=3),
  )
  ids = make.ids((2, 8))

  def token_loss(*inputs):
    def loss(model):
      x = model.hidden(*inputs).x
      return model.cross_entropy(x, ids, jnp.ones(ids.shape))['loss'][0]

    return loss

  return {
    'language model': (make.language_model(), token_loss(ids)),
    'encoder-decoder': (make.encoder_decoder(encoder, decoder), token_loss(ids, ids)),
    'vision transformer': (
      image,
      lambda model: jnp.square(model(jax.random.normal(jax.random.key(3), (2, 4, 4, 1))).x).sum(),
    ),
  }


@pytest.mark.parametrize(
  'name',
  [
    'language model',
    pytest.param('encoder-decoder', marks=pytest.mark.nightly),
    pytest.param('vision transformer', marks=pytest.mark.nightly),
  ],
)
def test_forward_mode_derivatives_equal_gradients(make, name):
  build, loss = losses(make)[name]
  model, tangent = make.built(build), make.built(build, seed=1)

  def plain(model):
    with plain_operations():
      return loss(model)

  value, derivative = jax.jit(lambda *pair: jax.jvp(plain, pair[:1], pair[1:]))(model, tangent)
  gradient = jax.jit(jax.grad(loss))(model)
  products = jax.tree.map(lambda a, b: (a * b).sum(), gradient, tangent)
  assert derivative == pytest.approx(float(sum(jax.tree.leaves(products))), rel=1e-4)
  assert value == pytest.approx(float(loss(model)), rel=1e-5)


def test_without_plain_operations_there_is_no_forward_mode(make):
  build, loss = losses(make)['language model']
  model = make.built(build)
  with pytest.raises(TypeError, match='custom_vjp'):
    jax.jvp(loss, (model,), (model,))
