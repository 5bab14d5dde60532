"""Forward-mode derivatives of models that are traced with plain operations."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from t2x.base.step import plain_operations
from t2x.layers import (
  AttentionInputs,
  Blockwise,
  Causal,
  DotProduct,
  LearnedGrid,
  MultiHeadAttention,
  PallasMHA,
  PatchEmbedding,
  Splash,
  T5Bias,
  Tokens,
)
from t2x.models import Classifier, Decoder, Encoder, ReversibleStack, TiedHead, VisionTransformer

ROOT = Path(__file__).parents[2]


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

  by_parts = {
    'reversible stack': make.language_model(
      layers=functools.partial(ReversibleStack, num_layers=2, blocks=[make.block()])
    ),
    'attention in tiles': make.language_model(
      layers=make.stack([make.block(Blockwise(4, 4))]), encoding=bias
    ),
    'loss in blocks': functools.partial(
      make.language_model(), head=functools.partial(TiedHead, chunk=3)
    ),
  }
  return {name: (model, token_loss(ids)) for name, model in by_parts.items()} | {
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
    'reversible stack',
    'attention in tiles',
    'loss in blocks',
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

  # First, so that nothing which is compiled here is used with plain operations.
  gradient = jax.jit(jax.grad(loss))(model)
  value, derivative = jax.jit(lambda *pair: jax.jvp(plain, pair[:1], pair[1:]))(model, tangent)
  products = jax.tree.map(lambda a, b: (a * b).sum(), gradient, tangent)
  assert derivative == pytest.approx(float(sum(jax.tree.leaves(products))), rel=1e-4)
  assert value == pytest.approx(float(loss(model)), rel=1e-5)


@pytest.mark.parametrize(
  'kernel', [Splash(128, interpret=True), PallasMHA(16, 16, interpret=True)], ids=str
)
def test_kernels_that_have_gradients_only_are_refused(kernel):
  x, tokens = jnp.ones((1, 128, 2, 16)), Tokens.row(128)
  inputs = AttentionInputs(DotProduct(x, x, 1.0), x, Causal(), tokens, tokens)
  assert kernel.supports(inputs) is None
  with plain_operations():
    assert 'has no forward-mode derivatives (plain_operations)' in kernel.supports(inputs)


def test_every_file_with_gradients_of_its_own_has_plain_operations():
  files = [path for path in ROOT.glob('t2x/**/*.py') if 'custom_vjp' in path.read_text()]
  # `Splash` and `ReversibleStack` decide for these.
  without = {'splash.py', 'inversion.py', 'remat.py'}
  for path in files:
    decides = re.search('is_plain|on_one_cpu', path.read_text())
    assert bool(decides) != (path.name in without), path


def test_without_plain_operations_there_is_no_forward_mode(make):
  build, loss = losses(make)['language model']
  model = make.built(build)
  with pytest.raises(TypeError, match='custom_vjp'):
    jax.jvp(loss, (model,), (model,))
