"""Crops and flips move masks as they move images."""

import numpy as np
import pytest
from PIL import Image

from t2x.base.errors import UserError
from t2x.data import CentralCrop, RandomResizedCrop
from t2x.domains.segmentation import PrepareMask
from t2x.samples import DigitScenes

RNG = np.random.default_rng(0)
MASK = RNG.integers(0, 6, (20, 30)).astype(np.uint8)
MASK[MASK == 5] = 255
# Pixels that tell the class.
ROW = {'image': np.repeat(MASK[..., None], 3, axis=-1), 'mask': MASK}


def prepare(seed=0, row=ROW, height=20, width=30, **settings):
  settings = {'num_classes': 5, 'ignored': 255, 'mean': 0.0, 'std': 1 / 255} | settings
  prepared = PrepareMask(height=height, width=width, **settings)
  return prepared(row, np.random.default_rng(seed))


def test_flips_and_crops_at_whole_pixels_move_both():
  flipped = [prepare(seed, flip=True) for seed in range(20)]
  assert {np.array_equal(one['mask'], MASK) for one in flipped} == {True, False}
  # A crop of the size of the output needs no interpolation.
  crop = CentralCrop(fraction=2 / 3)
  cropped = prepare(row={n: a[:18, :24] for n, a in ROW.items()}, height=12, width=16, crop=crop)
  np.testing.assert_array_equal(cropped['mask'], MASK[3:15, 4:20])
  for one in (*flipped, cropped):
    np.testing.assert_allclose(one['image'][..., 0], one['mask'], atol=1e-4)


def test_resized_masks_take_the_nearest_pixel_as_pillow_does():
  crop = RandomResizedCrop(area=(0.2, 0.9))
  for seed in range(10):
    box = crop.box(20, 30, 16, 16, np.random.default_rng(seed))
    whole = Image.fromarray(MASK).resize((16, 16), Image.Resampling.NEAREST, box=box)
    resized = prepare(seed, height=16, width=16, crop=crop)['mask']
    np.testing.assert_array_equal(resized, np.asarray(whole))


@pytest.mark.parametrize(
  ('mask', 'message'),
  [
    (MASK[:-1], 'must have one integer per pixel'),
    (MASK.astype(np.float32), 'must have one integer per pixel'),
    (np.full_like(MASK, 5), 'a mask has the value 5: values must be classes from 0 to 4, or 255'),
    (np.full(MASK.shape, -1), 'a mask has the value -1'),
  ],
)
def test_masks_that_do_not_fit_are_refused(mask, message):
  with pytest.raises(UserError, match=message):
    prepare(row={**ROW, 'mask': mask})


def test_masks_of_digit_scenes_are_the_pixels_above_the_noise():
  seen = set()
  for scene in DigitScenes(train_examples=200).load('train'):
    image, mask = scene['image'][..., 0], scene['mask']
    is_digit = (mask > 0) & (mask != 255)
    assert (image[is_digit] > 48).all() and (image[mask == 0] < 48).all()
    assert {*mask[is_digit] - 1} <= {*scene['labels']}
    if len(scene['labels']) == 1:
      left, top, width, height = scene['boxes'][0]
      rows, columns = np.nonzero(is_digit)
      assert (left, top) == (columns.min(), rows.min())
      assert (width, height) == (np.ptp(columns) + 1, np.ptp(rows) + 1)
    seen |= {*mask.ravel()}
  assert seen == {*range(11), 255}
