"""Vision transformers for several patch sizes: what a training step draws, and what it computes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import MLP, FlexiblePatches, LearnedGrid, MultiHeadAttention, normal
from t2x.layers.keys import row_keys
from t2x.models import (
  Block,
  Classifier,
  Encoder,
  FlexibleVisionTransformer,
  Stack,
  VisionTransformer,
  mean_tokens,
)
from t2x.samples import Digits
from t2x.tasks import ImageClassification

part = functools.partial
SIZES = (2, 4)
TASK = ImageClassification(source=Digits(), image_shape=(8, 8, 1), num_classes=3, patch_sizes=SIZES)
BLOCK = part(
  Block, mixer=part(MultiHeadAttention, num_heads=2), feed_forward=part(MLP, hidden_dim=8)
)
rng = np.random.default_rng(0)
BATCH = {
  'image': jnp.asarray(rng.normal(size=(4, 8, 8, 1)), jnp.float32),
  'label': jnp.array([0, 2, 1, 1]),
  'weight': jnp.ones(4),
}


@pytest.fixture(scope='module')
def model():
  return FlexibleVisionTransformer(
    d_model=8,
    embedding=part(FlexiblePatches, kernel_size=4, channels=1, class_token=False),
    positions=part(LearnedGrid, height=2, width=2, num_extra=0, interpolation='linear'),
    body=part(Encoder, stack=part(Stack, num_layers=1, blocks=[BLOCK])),
    pool=mean_tokens,
    head=part(Classifier, num_classes=3, init=normal(0.5)),
    rngs=nnx.Rngs(0),
  )


def test_a_step_has_one_of_the_sizes_and_the_loss_and_gradients_of_a_model_with_it(model):
  plain = dataclasses.replace(TASK, patch_sizes=())

  def loss(model, task, batch, key):
    return task.sums(model, batch, row_keys(key, 4)).metrics['loss'][0]

  step = jax.jit(jax.value_and_grad(loss), static_argnums=1)
  drawn = set()
  for seed in range(6):
    key = jax.random.key(seed)
    batch = TASK.batch(BATCH, key)
    (index,) = set(np.asarray(batch['patch_size']).tolist())
    if index in drawn:
      continue
    drawn.add(index)
    found, slopes = step(model, TASK, batch, key)
    resized = model.at_patch_size(SIZES[index])
    expected, wanted = step(resized, plain, BATCH, key)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for ours, theirs in zip(jax.tree.leaves(slopes), jax.tree.leaves(wanted), strict=True):
      np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert np.abs(slopes.embedding.projection.kernel[...]).max() > 1e-4
  assert drawn == {0, 1}


def test_evaluation_has_the_size_of_the_model(model):
  for size in SIZES:
    expected = model.at_patch_size(size)(BATCH['image']).x
    np.testing.assert_array_equal(
      TASK.predictions(model.at_patch_size(size), BATCH, None)[0], expected
    )
  assert model.embedding.patch_size == 4
  assert model.hidden(BATCH['image']).x.shape[1] == 4
  assert model.at_patch_size(2).hidden(BATCH['image']).x.shape[1] == 16


def test_sizes_that_do_not_divide_the_image_and_models_with_one_size_are_refused(model):
  with pytest.raises(UserError, match='patch_sizes has 3, which does not divide'):
    dataclasses.replace(TASK, patch_sizes=(2, 3))
  TASK.check_model(model)
  fixed = VisionTransformer(
    d_model=8,
    embedding=part(FlexiblePatches, kernel_size=4, channels=1),
    positions=part(LearnedGrid, height=2, width=2),
    body=part(Encoder, stack=part(Stack, num_layers=1, blocks=[BLOCK])),
    head=part(Classifier, num_classes=3),
    rngs=nnx.Rngs(0),
  )
  with pytest.raises(UserError, match='has one patch size: use @FlexibleVisionTransformer'):
    TASK.check_model(fixed)
