"""Images of another source at another resolution."""

import pickle

import numpy as np
import pytest

from t2x.data.sources import Digits, Resized, Source
from t2x.data.sources.resized import resize


@pytest.mark.parametrize('size', [(16, 16), (5, 11), (8, 8), (1, 20)])
def test_resized_as_jax_does(size):
  import jax

  image = np.random.default_rng(0).integers(0, 256, (8, 8, 2)).astype(np.uint8)
  expected = jax.image.resize(image.astype(np.float32), (*size, 2), 'linear', antialias=False)
  np.testing.assert_allclose(resize(image, *size), expected, atol=0.51)


def test_halves_are_rounded_to_even():
  image = np.array([[[0], [1], [2]]], np.uint8)
  assert resize(image, 1, 6).ravel().tolist() == [0, 0, 1, 1, 2, 2]
  image = np.array([[[0], [2], [6]]], np.uint8)
  # 0, 0.5, 1.5, 3, 5, 6.
  assert resize(image, 1, 6).ravel().tolist() == [0, 0, 2, 3, 5, 6]


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
