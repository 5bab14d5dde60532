"""Features of recordings against those of transformers."""

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.domains.speech import LogMel
from t2x.domains.speech.spectrograms import mel_filters

transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")
rng = np.random.default_rng(0)
TIME = np.arange(20_000) / 16_000
# A rising tone with noise, quieter at the end.
AUDIO = np.sin(2 * np.pi * (200 + 1500 * TIME) * TIME) + 0.1 * rng.normal(size=TIME.shape)
AUDIO = (AUDIO * np.linspace(0.5, 0.01, len(TIME))).astype(np.float32)


@pytest.mark.parametrize(('num_features', 'seconds'), [(80, 2), (128, 1)])
def test_features_equal_those_of_whisper(num_features, seconds, compared):
  theirs = transformers.WhisperFeatureExtractor(feature_size=num_features, chunk_length=seconds)
  # Its NumPy path; the path of torch computes in float32.
  batch = np.pad(AUDIO, (0, 32_000))[None, : 16_000 * seconds]
  expected = theirs._np_extract_fbank_features(batch, 'cpu')[0].T
  got = LogMel(num_features=num_features, num_frames=100 * seconds)(AUDIO)
  assert got.dtype == np.float32 and got.shape == expected.shape
  compared(None, 'transformers WhisperFeatureExtractor', got, expected)
  called = theirs(AUDIO, sampling_rate=16_000, return_tensors='np').input_features[0].T
  compared(None, 'transformers WhisperFeatureExtractor', got, called)


def test_features_at_another_rate_are_those_of_the_same_frequencies():
  """A tone at half the rate, with half the window and hop, is in the band of its frequency."""
  slow = LogMel(rate=8000, window=200, hop=80, num_frames=100, num_features=40)
  tone = np.sin(2 * np.pi * 1520 * np.arange(8000) / 8000)
  band = slow(tone)[20:80].mean(axis=0).argmax()
  assert band == mel_filters(8000, 200, 40)[1520 * 200 // 8000].argmax()


def test_recordings_of_several_channels_are_refused():
  with pytest.raises(UserError, match='LogMel needs one channel'):
    LogMel()(np.zeros((2, 100)))
