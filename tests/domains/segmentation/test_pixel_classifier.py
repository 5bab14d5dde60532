"""Class logits of a grid: of the patches after a class token, and of a part that joins stages."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.domains.segmentation import PixelClassifier
from t2x.layers import MLP, AllMLP, GridConvolution, MultiHeadAttention, NoPositions, PatchEmbedding
from t2x.models import Block, Classifier, Encoder, Stack, Stages

part = functools.partial
STACK = part(
  Stack,
  num_layers=1,
  blocks=[
    part(Block, mixer=part(MultiHeadAttention, num_heads=2), feed_forward=part(MLP, hidden_dim=8))
  ],
)
IMAGES = np.random.default_rng(0).normal(size=(2, 6, 8, 1)).astype(np.float32)


def model(class_token, stack=STACK, **settings):
  return PixelClassifier(
    d_model=8,
    embedding=part(PatchEmbedding, patch_size=2, channels=1, class_token=class_token),
    positions=NoPositions,
    body=part(Encoder, stack=stack),
    head=part(Classifier, num_classes=3, init=nnx.initializers.normal(1.0)),
    rngs=nnx.Rngs(0),
    **settings,
  )


def test_logits_are_those_of_the_patches_without_the_class_token():
  segmenter = model(True)
  logits = segmenter(jnp.asarray(IMAGES)).x
  hidden = np.asarray(segmenter.hidden(jnp.asarray(IMAGES)).x)[:, 1:]
  kernel, bias = (np.asarray(p[...]) for p in (segmenter.head.out.kernel, segmenter.head.out.bias))
  np.testing.assert_allclose(logits, (hidden @ kernel + bias).reshape(2, 3, 4, 3), atol=1e-5)


def test_joined_stages_have_the_grid_of_the_first_and_no_cache():
  stages = part(
    Stages,
    stages=[STACK, STACK],
    merge=part(GridConvolution, factor=2.0, stride=2),
    join=part(AllMLP, width=32),
  )
  segmenter = model(False, stages)
  assert segmenter(jnp.asarray(IMAGES)).x.shape == (2, 3, 4, 3)
  with pytest.raises(UserError, match=r'Stages.join = @AllMLP reads the outputs of all stages'):
    segmenter.body.init_cache(2, 12, jnp.float32)
