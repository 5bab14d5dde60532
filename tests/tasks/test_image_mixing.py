"""MixUp: what is mixed, by how much, and what it costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx

from t2x.data import Chain, PrepareImage, RandAugment
from t2x.layers import named_key
from t2x.layers.keys import row_keys
from t2x.models import Output
from t2x.samples import Digits
from t2x.tasks import AnyMixing, CutMix, ImageClassification, Mixture, MixUp

DIGITS = {'source': Digits(), 'image_shape': (4, 4, 1), 'num_classes': 7}
rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(6, 4, 4, 1)).astype(np.float32)
LABELS = np.array([3, 0, 6, 2, 1, 3])
WEIGHTS = rng.normal(size=(16, 7)).astype(np.float32)


class Straight(nnx.Module):
  """Logits that are linear in the pixels."""

  num_classes = 7

  def __call__(self, images, key=None):
    return Output(images.reshape(len(images), -1) @ WEIGHTS)


def batch():
  return {
    'image': jnp.asarray(IMAGES),
    'label': jnp.asarray(LABELS),
    'weight': jnp.ones(6),
  }


def trained(task, key, model=None):
  """What the train step computes: mixed with the key of the step, then with the keys of the rows."""
  mixed = task.batch(batch(), key)
  return task.sums(model or Straight(), mixed, row_keys(key, 6))


def test_images_are_mixed_with_a_permutation_of_the_batch():
  mixed, other, share = MixUp(alpha=1.0)(jnp.asarray(IMAGES), jax.random.key(3))
  assert sorted(np.asarray(other)) == list(range(6))
  assert share.shape == (1,)
  part = float(share[0])
  expected = part * IMAGES.astype(np.float64) + (1 - part) * IMAGES[np.asarray(other)]
  np.testing.assert_allclose(mixed, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('alpha', [0.2, 1.0])
def test_shares_are_beta(alpha):
  keys = jax.random.split(jax.random.key(0), 2000)
  shares = jax.vmap(lambda key: MixUp(alpha=alpha)(jnp.zeros((2, 1, 1, 1)), key)[2][0])(keys)
  found = scipy.stats.kstest(np.asarray(shares, np.float64), scipy.stats.beta(alpha, alpha).cdf)
  assert found.pvalue > 1e-3


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_the_loss_is_the_cross_entropy_with_mixed_labels(smoothing):
  task = ImageClassification(**DIGITS, mixing=MixUp(alpha=1.0), label_smoothing=smoothing)
  key = jax.random.key(5)
  sums = trained(task, key).metrics
  mixed, other, share = task.mixing(jnp.asarray(IMAGES), named_key(key, 'task.mixing'))
  part, other = float(share[0]), np.asarray(other)
  logits = np.asarray(mixed, np.float64).reshape(6, -1) @ WEIGHTS.astype(np.float64)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  target = part * np.eye(7)[LABELS] + (1 - part) * np.eye(7)[LABELS[other]]
  target = (1 - smoothing) * target + smoothing / 7
  total, weight = sums['loss']
  np.testing.assert_allclose(total, -(target * log_p).sum(), rtol=1e-5)
  np.testing.assert_allclose(weight, 6.0, rtol=1e-6)
  guess = logits.argmax(-1)
  hits = part * (guess == LABELS) + (1 - part) * (guess == LABELS[other])
  np.testing.assert_allclose(sums['accuracy'][0], hits.sum(), rtol=1e-5)


def test_mixing_leaves_the_dropout_masks_of_the_model():
  keys = []

  class Keyed(Straight):
    def __call__(self, images, key=None):
      keys.append(jax.random.key_data(key).tolist())
      return super().__call__(images)

  for mixing in (None, MixUp()):
    trained(ImageClassification(**DIGITS, mixing=mixing), jax.random.key(2), Keyed())
  assert keys[0] == keys[1]


def test_a_mixture_mixes_as_its_tasks_do():
  task = ImageClassification(**DIGITS, mixing=MixUp(alpha=1.0))
  key = jax.random.key(4)
  for ours, expected in zip(
    *(jax.tree.leaves(mixer.batch(batch(), key)) for mixer in (Mixture(tasks={'a': task}), task)),
    strict=True,
  ):
    np.testing.assert_array_equal(ours, expected)


def test_only_training_mixes_and_augments():
  plain = ImageClassification(**DIGITS)
  task = ImageClassification(**DIGITS, mixing=MixUp(alpha=1.0), augmentation=RandAugment())
  for ours, expected in zip(
    jax.tree.leaves(task.sums(Straight(), batch(), None)),
    jax.tree.leaves(plain.sums(Straight(), batch(), None)),
    strict=True,
  ):
    np.testing.assert_array_equal(ours, expected)
  key = jax.random.key(1)
  first, again = (trained(task, key).metrics['loss'][0] for _ in range(2))
  assert first == again
  assert first != plain.sums(Straight(), batch(), key).metrics['loss'][0]
  assert task.transform(train=False) == plain.transform(train=False)
  assert task.transform(train=True) == Chain((RandAugment(), PrepareImage()))


def test_one_of_several_parts_mixes_a_batch():
  parts = MixUp(alpha=1.0), CutMix()
  mix, images = AnyMixing(parts=parts), jnp.asarray(IMAGES)
  drawn = set()
  for seed in range(8):
    key = jax.random.key(seed)
    found = mix(images, key)[0]
    each = [part(images, named_key(key, 'mixing'))[0] for part in parts]
    drawn.add(next(i for i, one in enumerate(each) if np.allclose(one, found, atol=1e-6)))
  assert drawn == {0, 1}


def test_labels_of_a_cut_image_weigh_as_much_as_its_pixels():
  images = jnp.arange(3.0)[:, None, None, None] * jnp.ones((1, 7, 9, 1))
  for seed in range(6):
    mixed, other, share = CutMix()(images, jax.random.key(seed))
    for i in range(3):
      expected = float(share[0]) * i + (1 - float(share[0])) * int(other[i])
      np.testing.assert_allclose(mixed[i].mean(), expected, atol=1e-5)
