"""Images: normalised always, cropped and mirrored in training alone."""

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.data import Batches, PrepareImage, RandAugment, channel_statistics

IMAGE = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)


def prepare(seed=0, image=IMAGE, **kwargs):
  return PrepareImage(**kwargs)({'image': image, 'label': 4}, np.random.default_rng(seed))


def test_pixels_are_scaled_and_normalised():
  ready = prepare(mean=0.25, std=0.5)
  np.testing.assert_allclose(ready['image'], (IMAGE / 255 - 0.25) / 0.5, rtol=1e-5, atol=1e-6)
  assert ready['image'].dtype == np.float32
  assert (ready['label'], ready['weight']) == (4, 1.0)


def test_grey_images_get_a_channel_and_channels_their_own_mean():
  assert prepare(image=IMAGE[..., 0])['image'].shape == (8, 6, 1)
  black = prepare(image=np.zeros_like(IMAGE), mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 1.0))
  np.testing.assert_allclose(black['image'][0, 0], [-0.1, -0.1, -0.3], rtol=1e-6)


def test_evaluation_draws_nothing():
  np.testing.assert_array_equal(prepare(0)['image'], prepare(1)['image'])


def test_flips_mirror_half_of_the_images():
  straight = prepare()['image']
  flipped = [prepare(seed, flip=True)['image'] for seed in range(400)]
  mirrored = [np.array_equal(image, straight[:, ::-1]) for image in flipped]
  assert all(m or np.array_equal(i, straight) for m, i in zip(mirrored, flipped, strict=True))
  assert np.mean(mirrored) == pytest.approx(0.5, abs=0.1)


def test_crops_are_all_shifts_up_to_the_padding():
  padded = np.pad(IMAGE, ((1, 1), (1, 1), (0, 0)))
  shifts = [padded[i : i + 8, j : j + 6] for i in range(3) for j in range(3)]
  seen = set()
  for seed in range(100):
    image = prepare(seed, crop_padding=1, mean=0.0, std=1.0)['image'] * 255
    same = [np.allclose(image, shift, atol=1e-3) for shift in shifts]
    assert sum(same) == 1
    seen.add(same.index(True))
  assert seen == set(range(9))


@pytest.mark.parametrize('label', [-1, 5, 'cat', 1.0])
def test_a_label_that_is_no_class_names_the_row(label):
  rows = [{'image': IMAGE, 'label': 0}, {'image': IMAGE, 'label': label}]
  batches = Batches(rows, PrepareImage(num_classes=5), batch_size=2, seed=0)
  with pytest.raises(UserError, match=rf'row 1: an image has the label {label!r}: .* from 0 to 4'):
    batches[0]
  assert batches.fingerprint == Batches(rows, PrepareImage(), batch_size=2, seed=0).fingerprint


@pytest.mark.parametrize('dtype', [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize('channels', [1, 3])
def test_normalisation_is_bitwise_that_of_plain_operations(dtype, channels):
  # Runs are resumed, and results recorded, on these bits.
  generator = np.random.default_rng(0)
  image = generator.integers(0, 256, (9, 7, channels)).astype(dtype)
  if dtype != np.uint8:
    image /= 255
  mean, std = generator.random(channels), 0.1 + generator.random(channels)
  scale = np.float32(255 if dtype == np.uint8 else 1)
  for m, s in ((0.5, 0.5), (0.3, 0.7), (mean, std)):
    expected = (image.astype(np.float32) / scale - np.float32(m)) / np.float32(s)
    for view in (np.s_[:], np.s_[:, ::-1], np.s_[::2]):
      actual = prepare(image=image[view], mean=m, std=s)['image']
      np.testing.assert_array_equal(actual, expected[view])


def test_statistics_weigh_images_equally_and_channels_apart():
  images = [np.full((2, 3, 3), 255, np.uint8), np.zeros((40, 50, 3)), IMAGE]
  mean, std = channel_statistics(images)
  pixels = [
    np.asarray(i, float).reshape(-1, 3) / (255 if i.dtype == np.uint8 else 1) for i in images
  ]
  np.testing.assert_allclose(mean, np.mean([p.mean(0) for p in pixels], 0))
  squares = np.mean([((p - mean) ** 2).mean(0) for p in pixels], 0)
  np.testing.assert_allclose(std, np.sqrt(squares))
  mean, std = channel_statistics([IMAGE[..., 0], IMAGE[..., :1]])
  assert (mean.shape, std.shape) == ((1,), (1,))
  with pytest.raises(UserError, match='number of channels: 1, 3'):
    channel_statistics([IMAGE, IMAGE[..., 0]])


@pytest.mark.parametrize(
  'image', [np.full((4, 4, 3), 1.5), np.full((4, 4, 3), -0.5), np.full((4, 4, 3), 7, np.int32)]
)
def test_pixels_outside_of_their_range_are_refused(image):
  row = {'image': image, 'label': 0}
  for use in (
    lambda: PrepareImage()(row, np.random.default_rng(0)),
    lambda: RandAugment()(row, np.random.default_rng(0)),
    lambda: channel_statistics([image]),
  ):
    with pytest.raises(UserError, match='images must be uint8, or float from 0 to 1'):
      use()
