"""Crops of images of any size, and their resizing."""

import itertools

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.data import Batches, CentralCrop, Chain, CropAndResize, PrepareImage, RandomResizedCrop
from t2x.data.crops import Box, resize


@pytest.fixture(scope='module')
def photograph():
  from sklearn.datasets import load_sample_image

  return load_sample_image('flower.jpg')


def reference(image, height, width):
  """JAX's antialiased resizing, in floats."""
  import jax

  shape = (height, width, image.shape[-1])
  return np.asarray(jax.image.resize(image.astype(np.float32), shape, 'linear', antialias=True))


@pytest.mark.parametrize('size', [(224, 224), (50, 300), (500, 800), (427, 640), (3, 2)])
def test_photographs_are_resized_as_jax_does(photograph, size):
  expected = reference(photograph, *size)
  exact = resize(photograph.astype(np.float32), *size)
  np.testing.assert_allclose(exact, expected, atol=0.01)
  # Half a level of rounding per dimension.
  actual = resize(photograph, *size)
  assert actual.dtype == np.uint8
  np.testing.assert_allclose(actual, expected, atol=1.01)


def test_a_fine_pattern_becomes_grey():
  board = np.indices((256, 256)).sum(0) % 2 * np.uint8(254)
  small = resize(board[..., None].astype(np.uint8), 32, 32)
  assert np.abs(small.astype(int) - 127).max() <= 3


@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
@pytest.mark.parametrize('channels', [1, 2, 3, 4])
def test_channels_do_not_mix(photograph, channels, dtype):
  image = np.dstack([photograph, photograph[::-1]])[..., :channels].astype(dtype)
  image[..., -1] //= 3
  together = resize(image, 40, 60)
  assert (together.shape, together.dtype) == ((40, 60, channels), dtype)
  for i in range(channels):
    np.testing.assert_array_equal(together[..., i], resize(image[..., i : i + 1], 40, 60)[..., 0])


def test_a_box_is_cut_out_before_resizing(photograph):
  box = Box(100, 20, 356, 276)
  part = photograph[20:276, 100:356]
  np.testing.assert_array_equal(resize(photograph, 256, 256, box), part)
  inner = resize(photograph, 64, 64, box)[2:-2, 2:-2].astype(int)
  np.testing.assert_allclose(inner, resize(part, 64, 64)[2:-2, 2:-2], atol=1)
  # Half a pixel to the right.
  moved = resize(photograph.astype(np.float32), 256, 256, Box(100.5, 20, 356.5, 276))
  expected = (photograph[20:276, 100:356].astype(float) + photograph[20:276, 101:357]) / 2
  np.testing.assert_allclose(moved, expected, atol=0.01)


def rng(seed=0):
  return np.random.default_rng(seed)


@pytest.mark.parametrize(
  ('size', 'new', 'expected'),
  [
    ((256, 256), (224, 224), (16, 16, 240, 240)),
    ((256, 512), (224, 224), (144, 16, 368, 240)),
    ((512, 256), (224, 224), (16, 144, 240, 368)),
    ((400, 400), (100, 200), (25, 112.5, 375, 287.5)),
    ((1, 1), (8, 8), (0.0625, 0.0625, 0.9375, 0.9375)),
  ],
)
def test_the_central_crop_has_the_proportions_of_the_input(size, new, expected):
  assert CentralCrop().box(*size, *new, rng()) == pytest.approx(expected)
  left, top, right, bottom = CentralCrop(fraction=1.0).box(*size, *new, rng())
  assert (right - left) / (bottom - top) == pytest.approx(new[1] / new[0])
  assert right - left == size[1] or bottom - top == size[0]


def test_central_crops_of_every_size_are_inside():
  crop = CentralCrop(fraction=1.0)
  for height, width in itertools.product(range(1, 120), repeat=2):
    left, top, right, bottom = crop.box(height, width, 160, 224, rng)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def boxes(crop, height, width, count=2000):
  generator = rng(1)
  drawn = [crop.box(height, width, 224, 224, generator) for _ in range(count)]
  left, top, right, bottom = np.array(drawn).T
  assert (left >= 0).all() and (top >= 0).all()
  assert (right <= width).all() and (bottom <= height).all()
  return left, top, right - left, bottom - top


def test_random_crops_have_areas_proportions_and_places_of_their_ranges():
  left, top, width, height = boxes(RandomResizedCrop(), 375, 500)
  areas, aspects = width * height / (375 * 500), width / height
  assert 0.07 < areas.min() < 0.1 and 0.9 < areas.max() <= 1
  assert 0.74 < aspects.min() < 0.77 and 1.3 < aspects.max() < 1.36
  # Small ones, of which all fit: uniform areas and places, and as many upright ones as others.
  left, top, width, height = boxes(RandomResizedCrop(area=(0.1, 0.3)), 375, 500)
  assert np.mean(width * height) / (375 * 500) == pytest.approx(0.2, abs=0.005)
  assert np.mean(width > height) == pytest.approx(0.5, abs=0.04)
  for start, size, whole in ((left, width, 500), (top, height, 375)):
    places = start / (whole - size)
    assert np.histogram(places, 4, (0, 1))[0] / len(places) == pytest.approx(0.25, abs=0.04)


def test_random_crops_of_narrow_images_are_central():
  crop = RandomResizedCrop(area=(0.9, 1.0))
  assert crop.box(100, 1000, 224, 224, rng()) == pytest.approx((433.333, 0, 566.667, 100), abs=0.01)
  assert crop.box(800, 100, 224, 224, rng()) == pytest.approx((0, 333.333, 100, 466.667), abs=0.01)
  whole = RandomResizedCrop(area=(1.0, 1.0), aspect=(1.0, 1.0))
  assert whole.box(30, 30, 8, 8, rng()) == (0, 0, 30, 30)
  for height, width in itertools.product((1, 2, 3), repeat=2):
    boxes(RandomResizedCrop(), height, width, 50)


@pytest.mark.parametrize('setting', [{'area': (0.5, 0.2)}, {'aspect': (2.0, 0.5)}])
def test_ranges_whose_ends_are_exchanged_are_refused(setting):
  (name,) = setting
  with pytest.raises(UserError, match=rf'RandomResizedCrop.{name} = .*must be the smallest'):
    RandomResizedCrop(**setting)


def test_images_of_any_size_and_kind_get_one_shape(photograph):
  grey = photograph[:300, :200, 0]
  for image in (photograph, photograph[:40, :300], grey, grey.astype(np.float64) / 255):
    for crop in (CentralCrop(), RandomResizedCrop()):
      row = CropAndResize(crop, 32, 48)({'image': image, 'label': 3}, rng())
      assert row['image'].shape == (32, 48, 3 if image.ndim == 3 else 1)
      assert row['image'].dtype == (np.uint8 if image.dtype == np.uint8 else np.float32)
      assert row['label'] == 3
      assert np.ptp(row['image']) > 10 * (1 if image.dtype == np.uint8 else 1 / 255)


def test_a_batch_of_photographs_is_a_function_of_seed_and_step(photograph):
  rows = [{'image': photograph[: 100 + 30 * i, i:], 'label': i} for i in range(6)]
  transform = Chain((CropAndResize(RandomResizedCrop(), 16, 16), PrepareImage(flip=True)))

  def batches(seed):
    return Batches(rows, transform, batch_size=4, seed=seed)

  for step in (0, 5):
    assert batches(1)[step]['image'].shape == (4, 16, 16, 3)
    np.testing.assert_array_equal(batches(1)[step]['image'], batches(1)[step]['image'])
    assert not np.array_equal(batches(1)[step]['image'], batches(2)[step]['image'])
  # The same rows, in another epoch.
  first, second = (np.sort(batches(1)[s]['image'].sum((1, 2, 3))) for s in (0, 3))
  assert not np.isclose(first, second).any()
  other = CropAndResize(RandomResizedCrop(area=(0.5, 1.0)), 16, 16)
  different = Batches(rows, Chain((other, PrepareImage(flip=True))), batch_size=4, seed=1)
  assert different.fingerprint != batches(1).fingerprint
