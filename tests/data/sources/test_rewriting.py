"""Images of another source at another resolution."""

import hashlib
import pickle

import numpy as np
import pytest
from listed import Listed

from t2x.base.errors import UserError
from t2x.data import Resized, Source
from t2x.samples import Digits


def resized(image, height, width):
  source = Resized(source=Listed(({'image': image, 'label': 0},)), height=height, width=width)
  return source.load('train')[0]['image']


@pytest.mark.parametrize('size', [(16, 16), (5, 11), (8, 8), (3, 20), (1, 2)])
def test_resized_as_jax_does_and_rounded_once(size):
  import jax

  image = np.random.default_rng(0).integers(0, 256, (8, 8, 2)).astype(np.uint8)
  expected = jax.image.resize(image.astype(np.float32), (*size, 2), 'linear', antialias=True)
  np.testing.assert_allclose(resized(image, *size), expected, atol=0.501)


def test_halves_are_rounded_to_even():
  image = np.array([[[0], [1], [2]]], np.uint8)
  assert resized(image, 1, 6).ravel().tolist() == [0, 0, 1, 1, 2, 2]
  image = np.array([[[0], [2], [6]]], np.uint8)
  # 0, 0.5, 1.5, 3, 5, 6.
  assert resized(image, 1, 6).ravel().tolist() == [0, 0, 2, 3, 5, 6]


def test_enlarged_digits_match_recorded_results():
  test = Resized(source=Digits(), height=16, width=16).load('test')
  images = b''.join(example['image'].tobytes() for example in test)
  assert hashlib.sha256(images).hexdigest().startswith('25d0c07bbcee5a9a')


def test_the_rest_of_an_example_stays(message):
  source = Resized(source=Digits(), height=16, width=12)
  assert isinstance(source, Source)
  assert pickle.loads(pickle.dumps(source)) == source
  test = source.load('test')
  assert len(test) == 359
  assert test[0]['image'].shape == (16, 12, 1)
  assert test[0]['label'] == Digits().load('test')[0]['label']
  other = Resized(source=Digits(), height=12, width=16)
  assert len({s.fingerprint() for s in (source, other, Digits())}) == 3


def test_float_images_are_refused(unchecked):
  with pytest.raises(UserError, match='needs images of type uint8, not float64'):
    resized(np.full((4, 4, 1), 0.5), 2, 2)
