"""Operations on images against Pillow, and RandAugment's choice among them."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from t2x.data import Batches, Chain, PrepareImage, RandAugment, image_operations
from t2x.data.rand_augment import OPERATIONS

rng = np.random.default_rng(0)
# A photograph's greys are seldom all of 0..255: these go from 20 to 220.
COLOURED = (20 + 200 * rng.random((32, 24, 3)) ** 2).astype(np.uint8)
SMALL = (230 * rng.random((7, 9, 1)) ** 3).astype(np.uint8)


def pillow(image, function):
  """The operation of Pillow; of one channel as a grey image."""
  given = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
  return np.asarray(function(given)).reshape(image.shape)


def enhance(name, factor):
  return lambda image: getattr(ImageEnhance, name)(image).enhance(factor)


FACTORS = (0.1, 0.6, 1.0, 1.5, 1.9)
# Name in t2x, value, what Pillow does.
CASES = (
  [
    (name.lower(), f, enhance(name, f))
    for name in ('Brightness', 'Contrast', 'Color')
    for f in FACTORS
  ]
  + [('sharpness', f, enhance('Sharpness', f)) for f in FACTORS]
  + [('posterize', bits, lambda i, bits=bits: ImageOps.posterize(i, bits)) for bits in (8, 6, 4, 1)]
  + [('solarize', t, lambda i, t=t: ImageOps.solarize(i, t)) for t in (0.0, 100.0, 256.0)]
  + [('autocontrast', None, ImageOps.autocontrast), ('equalize', None, ImageOps.equalize)]
)


@pytest.mark.parametrize(('name', 'value', 'theirs'), CASES)
@pytest.mark.parametrize('image', [COLOURED, SMALL], ids=['coloured', 'small'])
def test_values_are_pillows(image, name, value, theirs):
  operation = getattr(image_operations, name)
  ours = operation(image) if value is None else operation(image, value)
  expected = pillow(image, theirs)
  # Pillow cuts off where t2x rounds: of sharpness twice.
  atol = {'posterize': 0, 'solarize': 0, 'equalize': 0}.get(name, 2 if name == 'sharpness' else 1)
  np.testing.assert_allclose(ours.astype(int), expected.astype(int), atol=atol)
  assert ours.dtype == np.uint8


@pytest.mark.parametrize('image', [COLOURED, SMALL], ids=['coloured', 'small'])
@pytest.mark.parametrize('degrees', [0.0, 17.0, -30.0, 90.0])
def test_turns_are_pillows(image, degrees):
  ours = image_operations.rotate(image, degrees, 128)
  fill = 128 if image.shape[-1] == 1 else (128,) * 3
  expected = pillow(image, lambda i: i.rotate(degrees, fillcolor=fill))
  # Pillow counts in 1/65536 of a pixel: on an edge between two pixels it may take the other one.
  assert (ours == expected).all(axis=-1).mean() > 0.98


@pytest.mark.parametrize(
  'matrix',
  [
    (1.0, 0.3, 0.0, 0.0, 1.0, 0.0),
    (1.0, 0.0, 0.0, -0.2, 1.0, 0.0),
    (1.0, 0.0, 5.0, 0.0, 1.0, -3.0),
  ],
)
def test_shears_and_shifts_are_pillows(matrix):
  ours = image_operations.affine(COLOURED, matrix, 7)
  theirs = pillow(COLOURED, lambda i: i.transform(i.size, Image.AFFINE, matrix, fillcolor=(7,) * 3))
  assert (ours == theirs).all(axis=-1).mean() > 0.98


def test_flat_images_stay():
  flat = np.full((6, 5, 2), 90, np.uint8)
  for name in ('autocontrast', 'equalize'):
    np.testing.assert_array_equal(getattr(image_operations, name)(flat), flat)


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
def test_magnitudes_are_those_of_autoaugment(part, sign):
  theirs = strongest(sign, part)
  for index, (operation, function) in enumerate(zip(OPERATIONS, theirs, strict=True)):
    ours = operation(COLOURED, part, sign, 128).astype(int)
    # Roundings and edges as above: the fourth and the last four move pixels.
    near = abs(ours - pillow(COLOURED, function)).max(axis=-1) <= 2
    assert near.mean() > 0.98 if index in {3, 10, 11, 12, 13} else near.all(), index


def augmented(seed=0, image=COLOURED, **settings):
  return RandAugment(**settings)({'image': image, 'label': 3}, np.random.default_rng(seed))


def test_magnitude_0_changes_nothing_that_has_a_strength():
  weak = [operation(COLOURED, 0.0, sign, 0) for operation in OPERATIONS for sign in (-1, 1)]
  changed = [not np.array_equal(image, COLOURED) for image in weak]
  # Autocontrast and equalize have none.
  assert sum(changed) == 4
  strong = [operation(COLOURED, 1.0, sign, 0) for operation in OPERATIONS for sign in (-1, 1)]
  assert sum(not np.array_equal(image, COLOURED) for image in strong) == 2 * (len(OPERATIONS) - 1)


def test_every_operation_is_drawn_both_ways():
  ways = [operation(COLOURED, 0.5, sign, 128) for operation in OPERATIONS for sign in (-1, 1)]
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


def test_a_batch_is_a_function_of_seed_and_step():
  rows = [{'image': COLOURED, 'label': i} for i in range(6)]
  transform = Chain((RandAugment(), PrepareImage(crop_padding=1)))

  def batches(seed):
    return Batches(rows, transform, batch_size=4, seed=seed)

  for step in (0, 5):
    np.testing.assert_array_equal(batches(1)[step]['image'], batches(1)[step]['image'])
    assert not np.array_equal(batches(1)[step]['image'], batches(2)[step]['image'])
