"""Images and masks in two folders, in the layout of ADE20K."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from t2x.base.errors import UserError
from t2x.domains.segmentation import MaskFolder
from t2x.experiments import read_config

ROOT = Path(__file__).parents[3]
FULL = ROOT / 'configs' / 'runs' / 'segformer_ade20k_full.gin'
PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 6) * 6


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A hand-written folder of two images per split; the second mask has a palette of colours."""
  monkeypatch.chdir(tmp_path)
  for split in ('training', 'validation'):
    images, masks = (
      Path('ADEChallengeData2016', kind, split) for kind in ('images', 'annotations')
    )
    images.mkdir(parents=True)
    masks.mkdir(parents=True)
    for number in (1, 2):
      Image.fromarray(np.repeat(PIXELS[..., None], 3, -1)).save(images / f'ADE_{number}.jpg')
      mask = Image.fromarray(PIXELS + number)
      if number == 2:
        mask = Image.fromarray(PIXELS, 'P')
        mask.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype(np.uint8).tobytes())
      mask.save(masks / f'ADE_{number}.png')
  return tmp_path / 'ADEChallengeData2016'


def source(**settings):
  settings = {'images': 'ADEChallengeData2016/images', 'train': 'training'} | settings
  return MaskFolder(masks='ADEChallengeData2016/annotations', **settings)


def test_masks_are_the_numbers_of_their_pixels_and_classes_begin_after_void(folder):
  plain = [example['mask'] for example in source().load('train')]
  np.testing.assert_array_equal(plain, [PIXELS + 1, PIXELS])
  shifted = source(void=0).load('train')[1]
  np.testing.assert_array_equal(shifted['mask'], np.where(PIXELS == 0, 255, PIXELS - 1.0))
  assert shifted['image'].shape == (4, 6, 3) and shifted['image'].dtype == np.uint8
  assert source().fingerprint() != source(void=0).fingerprint()


def test_what_cannot_be_read_is_refused(folder):
  with pytest.raises(UserError, match='pictures/training is not a folder'):
    source(images='pictures').load('train')
  Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(folder / 'annotations/training/ADE_1.png')
  with pytest.raises(UserError, match=r'ADE_1.png cannot be read: its mode RGB has colours'):
    source().load('train')[0]
  (folder / 'images' / 'training' / 'ADE_2.jpg').unlink()
  with pytest.raises(UserError, match=r'ADE_2\.png has no image'):
    source().load('train')


def test_the_config_of_ade20k_fits_its_folders(folder):
  experiment = read_config([FULL]).build()
  task = experiment.task
  task.check_model(experiment.shapes())
  for train in (True, False):
    [row, *_] = task.rows('train' if train else 'validation')
    prepared = task.transform(train=train)(row, np.random.default_rng(0))
    assert prepared['image'].shape == (512, 512, 3) and prepared['mask'].shape == (512, 512)
    assert set(np.unique(prepared['mask'])) <= {*range(150), 255}
