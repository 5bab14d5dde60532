"""Colours of k-means, of the training images only, and pixels as tokens."""

import dataclasses

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.data import BPE, Bytes, Palette, load_tokenizer
from t2x.data.sources.base import Source
from t2x.data.tokenizers.palette import PaletteTokenizer
from t2x.domains.pixels import PixelLM

CENTRES = np.array([[10, 20, 200], [90, 80, 60], [240, 230, 250]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clusters(Source):
  """Images of 4 x 4 pixels around the centres, with other centres in the splits that are not for training."""

  moved: int = 0

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    random = np.random.default_rng(0 if split == 'train' else 1)
    centres = CENTRES if split == 'train' else CENTRES[:, ::-1] + self.moved
    pixels = centres[random.integers(3, size=(20, 4, 4))] + random.integers(-4, 5, (20, 4, 4, 3))
    return [{'image': image, 'text': 'red dog'} for image in pixels.clip(0, 255).astype(np.uint8)]

  def fingerprint(self):
    return f'clusters {self.moved}'


def task(**settings):
  return PixelLM(
    source=Clusters(**settings), tokenizer=Palette(num_colours=3), image_shape=(4, 4, 3)
  )


def test_colours_are_the_centres_of_the_training_images_from_dark_to_light():
  colours = task().fit_tokenizer().colours
  np.testing.assert_allclose(colours, CENTRES[[0, 1, 2]], atol=1)
  np.testing.assert_array_equal(task(moved=5).fit_tokenizer().colours, colours)


def test_pixels_have_the_id_of_the_nearest_colour_and_images_its_colour():
  palette = PaletteTokenizer(CENTRES.astype(float), Bytes().fit(list))
  image = np.random.default_rng(0).integers(0, 256, (3, 5, 3)).astype(np.uint8)
  distances = np.linalg.norm(image[..., None, :] - CENTRES.astype(float), axis=-1)
  ids = palette.pixels(image)
  np.testing.assert_array_equal(ids, distances.argmin(-1).ravel() + 261)
  np.testing.assert_array_equal(palette.image(ids, 3, 5), CENTRES[distances.argmin(-1)])
  with pytest.raises(UserError, match='colours of 3 channels'):
    palette.pixels(image[..., :1])


@pytest.mark.parametrize('text', [None, BPE(265)])
def test_a_saved_palette_is_the_same(text, tmp_path):
  config = Palette(num_colours=3, text=text)
  palette = config.train((row['image'], row['text']) for row in Clusters().load('train'))
  palette.save(tmp_path / 'tokenizer')
  loaded = load_tokenizer(tmp_path / 'tokenizer')
  assert loaded.fingerprint == palette.fingerprint
  assert loaded.vocab_size == config.vocab_size
  assert loaded.bos_id == config.ids.bos_id == (3 if text is None else palette.text.bos_id)
  np.testing.assert_array_equal(loaded.colours, palette.colours)
  if text is None:
    with pytest.raises(UserError, match='images, not texts'):
      loaded.encode('red')
  else:
    ids = [*loaded.encode('red dog'), palette.first]
    assert max(ids[:-1]) < palette.first
    assert loaded.decode(ids) == 'red dog'


def test_more_colours_than_the_images_have_are_refused():
  black = np.zeros((4, 4, 1), np.uint8)
  with pytest.raises(UserError, match='the training images have 1 colours'):
    Palette(num_colours=2).train([(black, '')])
