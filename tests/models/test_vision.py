"""The vision encoder: pooling, image sizes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.layers import LearnedGrid, PatchEmbedding, SinusoidalGrid
from t2x.models import Classifier, Encoder, VisionTransformer, first_token, mean_tokens


def model(make, class_token=True, **settings):
  defaults = {
    'embedding': functools.partial(
      PatchEmbedding, patch_size=2, channels=1, class_token=class_token
    ),
    'positions': functools.partial(LearnedGrid, height=3, width=3, num_extra=int(class_token)),
    'body': functools.partial(Encoder, stack=make.stack()),
    'head': functools.partial(Classifier, num_classes=5),
    'pool': first_token if class_token else mean_tokens,
  }
  return make.built(
    functools.partial(VisionTransformer, d_model=make.width, **(defaults | settings))
  )


def images(size=6):
  return jax.random.normal(jax.random.key(0), (2, size, size, 1))


@pytest.mark.parametrize('class_token', [True, False])
def test_logits_come_from_the_pooled_tokens(make, class_token):
  network = model(make, class_token)
  hidden = network.hidden(images()).x
  assert hidden.shape == (2, 9 + class_token, make.width)
  pooled = hidden[:, 0] if class_token else hidden.mean(1)
  np.testing.assert_allclose(network(images()).x, network.head(pooled), atol=1e-5)


def test_a_model_without_a_head_gives_the_pooled_vector(make):
  network = model(make, head=None)
  assert network.spec.outputs == {'vectors'} and network.spec.num_classes is None
  np.testing.assert_array_equal(network(images()).x, network.hidden(images()).x[:, 0])


@pytest.mark.parametrize('class_token', [True, False])
def test_patches_carry_their_grid(make, monkeypatch, class_token):
  network, seen = model(make, class_token), []
  call = Encoder.__call__

  def spy(self, x, context=None, *, tokens=None, **settings):
    seen.append((tokens.grid, tokens.num_extra, tokens.positions.shape))
    return call(self, x, context, tokens=tokens, **settings)

  monkeypatch.setattr(Encoder, '__call__', spy)
  network.hidden(images())
  assert seen == [((3, 3), int(class_token), (1, 9 + class_token))]


def test_the_head_drops_out_in_training(make):
  network = model(make, head=functools.partial(Classifier, num_classes=5, dropout_rate=0.5))
  trained = network(images(), key=jax.random.key(1)).x
  assert not np.allclose(trained, network(images()).x)


@pytest.mark.parametrize('size', [4, 10])
def test_another_image_size_interpolates_the_positions(make, size):
  out = model(make)(images(size)).x
  assert out.shape == (2, 5)
  assert bool(jnp.isfinite(out).all())


class Flat(PatchEmbedding):
  """Patches without a grid."""

  def __call__(self, images, tokens=None):
    x, tokens = super().__call__(images, tokens)
    return x, dataclasses.replace(tokens, grid=None)


def test_tokens_without_a_grid_are_refused(make):
  network = model(make, embedding=functools.partial(Flat, patch_size=2, channels=1))
  with pytest.raises(UserError, match=r'LearnedGrid needs a grid of rows and columns'):
    network(images())


def test_sinusoidal_grid_has_no_parameters(make):
  network = model(make, False, positions=functools.partial(SinusoidalGrid, num_extra=0))
  assert not jax.tree.leaves(network.positions)
  assert network(images()).x.shape == (2, 5)
