"""RandAugment: AutoAugment's operations and magnitudes, drawn for each image."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from t2x.data import Batches, Chain, PrepareImage, RandAugment
from t2x.data.rand_augment import operations, smoothed

rng = np.random.default_rng(0)
# A photograph's greys are seldom all of 0..255: these go from 20 to 220.
COLOURED = (20 + 200 * rng.random((32, 24, 3)) ** 2).astype(np.uint8)
SMALL = (230 * rng.random((7, 9, 1)) ** 3).astype(np.uint8)
OPERATIONS = operations()


def applied(operation, image, *settings):
  return np.asarray(operation(Image.fromarray(image), *settings))


def enhance(name, factor):
  return lambda image: getattr(ImageEnhance, name)(image).enhance(factor)


def affine(*matrix):
  return lambda image: image.transform(image.size, Image.AFFINE, matrix, fillcolor=(128,) * 3)


def strongest(sign, part):
  """What Pillow does for AutoAugment's table 6 at its ends, or `part` of the way there, in the
  order of the operations."""
  width, height = COLOURED.shape[1], COLOURED.shape[0]
  bits, threshold, degrees, shear, shift, change = {
    1.0: (4, 0, 30, 0.3, 150 / 331, 0.9),
    0.5: (6, 128, 15, 0.15, 75 / 331, 0.45),
  }[part]
  factor = 1 + sign * change
  return (
    lambda image: image,
    ImageOps.autocontrast,
    ImageOps.equalize,
    lambda image: image.rotate(sign * degrees, fillcolor=(128,) * 3),
    lambda image: ImageOps.solarize(image, threshold),
    enhance('Color', factor),
    lambda image: ImageOps.posterize(image, bits),
    enhance('Contrast', factor),
    enhance('Brightness', factor),
    enhance('Sharpness', factor),
    affine(1, sign * shear, 0, 0, 1, 0),
    affine(1, 0, 0, sign * shear, 1, 0),
    affine(1, 0, sign * shift * width, 0, 1, 0),
    affine(1, 0, 0, 0, 1, sign * shift * height),
  )


@pytest.mark.parametrize('sign', [-1, 1])
@pytest.mark.parametrize('part', [1.0, 0.5])
def test_magnitudes_match_autoaugment(part, sign):
  theirs = strongest(sign, part)
  for index, (operation, function) in enumerate(zip(OPERATIONS, theirs, strict=True)):
    ours, expected = applied(operation, COLOURED, part, sign, 128), applied(function, COLOURED)
    np.testing.assert_array_equal(ours, expected, str(index))


@pytest.mark.parametrize('shape', [(24, 32, 3), (7, 9), (3, 3), (2, 5, 3), (1, 9), (1, 1, 3)])
def test_smoothing_is_bitwise_that_of_pillow(shape):
  for top in (256, 3):
    image = Image.fromarray(rng.integers(0, top, shape).astype(np.uint8))
    np.testing.assert_array_equal(smoothed(image), image.filter(ImageFilter.SMOOTH))


def test_flat_images_stay_in_operations_without_a_strength():
  flat = np.full((6, 5), 90, np.uint8)
  for operation in OPERATIONS[:3]:
    np.testing.assert_array_equal(applied(operation, flat, 1.0, 1, 0), flat)


def augmented(seed=0, image=COLOURED, **settings):
  return RandAugment(**settings)({'image': image, 'label': 3}, np.random.default_rng(seed))


def test_magnitude_0_is_the_identity():
  weak = [
    applied(operation, COLOURED, 0.0, sign, 0) for operation in OPERATIONS for sign in (-1, 1)
  ]
  changed = [not np.array_equal(image, COLOURED) for image in weak]
  # Autocontrast and equalize have none.
  assert sum(changed) == 4
  strong = [
    applied(operation, COLOURED, 1.0, sign, 0) for operation in OPERATIONS for sign in (-1, 1)
  ]
  assert sum(not np.array_equal(image, COLOURED) for image in strong) == 2 * (len(OPERATIONS) - 1)


def test_every_operation_is_drawn_both_ways():
  ways = [
    applied(operation, COLOURED, 0.5, sign, 128) for operation in OPERATIONS for sign in (-1, 1)
  ]
  different = {image.tobytes() for image in ways}
  drawn = {augmented(s, num_ops=1, magnitude=5.0)['image'].tobytes() for s in range(400)}
  assert drawn == different
  # Nine go two ways.
  assert len(different) == len(OPERATIONS) + 9
  twice = {augmented(s, num_ops=2, magnitude=5.0)['image'].tobytes() for s in range(400)}
  assert not twice <= different


def test_images_of_all_kinds_keep_their_size_and_label():
  for image in (COLOURED, SMALL, SMALL[..., 0], SMALL.astype(np.float32) / 255):
    row = augmented(5, image=image)
    assert row['image'].shape == (*image.shape[:2], 3 if image is COLOURED else 1)
    assert (row['image'].dtype, row['label']) == (np.uint8, 3)
  np.testing.assert_array_equal(augmented(num_ops=0)['image'], COLOURED)


@pytest.mark.parametrize('channels', [2, 4])
def test_channels_that_are_no_colours_are_grey_images(channels):
  image = np.dstack([COLOURED, COLOURED[::-1]])[..., :channels]
  for seed in range(20):
    row = augmented(seed, image=image)
    for i in range(channels):
      alone = augmented(seed, image=image[..., i])
      np.testing.assert_array_equal(row['image'][..., i], alone['image'][..., 0])


def test_a_batch_is_a_function_of_seed_and_step():
  rows = [{'image': COLOURED, 'label': i} for i in range(6)]
  transform = Chain((RandAugment(), PrepareImage(crop_padding=1)))

  def batches(seed):
    return Batches(rows, transform, batch_size=4, seed=seed)

  for step in (0, 5):
    np.testing.assert_array_equal(batches(1)[step]['image'], batches(1)[step]['image'])
    assert not np.array_equal(batches(1)[step]['image'], batches(2)[step]['image'])
