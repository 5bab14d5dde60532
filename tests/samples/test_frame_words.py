"""Visual words of videos."""

import dataclasses

import numpy as np
import pytest
from scipy.cluster.vq import vq

from t2x.base.errors import UserError
from t2x.samples import FrameWords, MovingDigits

VIDEOS = MovingDigits(label='digit', frames=3, train_examples=30)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))


def test_words_are_the_nearest_of_the_centres_of_the_train_split():
  """By scipy's vector quantisation, in all splits."""
  source = FrameWords(source=VIDEOS, num_words=12, num_frames=80)
  centres = source.centres(VIDEOS.load('train'))
  for split in ('train', 'validation'):
    texts = source.load(split)
    assert len(texts) == len(VIDEOS.load(split))
    for example, video in list(zip(texts, VIDEOS.load(split), strict=True))[:30]:
      caption, words = example['text'].split(' > ')
      assert caption == video['text']
      nearest, _ = vq(video['video'].reshape(3, -1).astype(float), centres)
      assert words.split() == [f'v{word:02}' for word in nearest]
  used = {
    word for example in source.load('train') for word in example['text'].split(' > ')[1].split()
  }
  assert len(used) == 12


def test_other_settings_are_other_texts():
  sources = [
    FrameWords(source=VIDEOS, num_words=12),
    FrameWords(source=VIDEOS, num_words=12, seed=1),
    FrameWords(source=dataclasses.replace(VIDEOS, noise=3), num_words=12),
  ]
  assert len({source.fingerprint() for source in sources}) == 3


def test_sources_that_do_not_fit_are_refused():
  with pytest.raises(UserError, match='num_words = 91, but k-means reads 90 frames'):
    FrameWords(source=VIDEOS, num_words=91).load('train')
  with pytest.raises(
    UserError, match=r'needs a video and a text, but the examples of .* have text'
  ):
    FrameWords(source=FrameWords(source=VIDEOS, num_words=4), num_words=2).load('train')
  assert np.isfinite(FrameWords(source=VIDEOS, num_words=2).centres(VIDEOS.load('test')[:9])).all()
