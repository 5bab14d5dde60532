"""Logarithms of mel spectrograms."""

import dataclasses
import functools

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Size

__all__ = ['LogMel']

# Frames per matrix product.
BLOCK = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogMel:
  """Features of a recording for Whisper (https://arxiv.org/abs/2212.04356, section 2.2), equal to those of
  transformers' WhisperFeatureExtractor at 16 kHz.

  Attributes:
    rate: samples per second of the recordings.
    num_features: number of mel bands from 0 Hz to rate / 2.
    window: samples per frame.
    hop: samples from one frame to the next.
    num_frames: number of frames; longer recordings are cut, shorter ones end with silence.
  """

  rate: Size = 16_000
  num_features: Size = 80
  window: Size = 400
  hop: Size = 160
  num_frames: Size = 3000

  def __call__(self, audio: np.ndarray) -> np.ndarray:
    """Returns the frames, float32 [num_frames, num_features].

    Args:
      audio: samples from -1 to 1, [samples].

    Raises:
      UserError: the recording has several channels.
    """
    if audio.ndim != 1:
      raise UserError(f'a recording has the shape {audio.shape}: LogMel needs one channel')
    size = self.num_frames * self.hop
    audio = audio[:size].astype(np.float64)
    padded = np.pad(np.pad(audio, (0, size - len(audio))), self.window // 2, mode='reflect')
    frames = np.lib.stride_tricks.sliding_window_view(padded, self.window)[:: self.hop]
    hann = np.hanning(self.window + 1)[:-1]
    power = np.abs(np.fft.rfft(frames[: self.num_frames] * hann)) ** 2
    filters = mel_filters(self.rate, self.window, self.num_features)
    # OpenBLAS splits products of this size over all cores, and 50 times slower than one core if the others are busy;
    # smaller products are not split.
    parts = [power[i : i + BLOCK] @ filters for i in range(0, len(power), BLOCK)]
    log = np.log10(np.maximum(np.concatenate(parts), 1e-10))
    # At most 80 dB below the loudest, and in a range of about two.
    return ((np.maximum(log, log.max() - 8.0) + 4.0) / 4.0).astype(np.float32)


@functools.cache
def mel_filters(rate: int, window: int, num_features: int) -> np.ndarray:
  """Returns triangles of unit area over the frequencies of a window, [window // 2 + 1, num_features].

  Their corners are equally spaced on Slaney's mel scale: linear up to 1 kHz, then logarithmic.
  """
  step = np.log(6.4) / 27

  def to_mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + np.log(hertz / 1000) / step

  mels = np.linspace(0, to_mel(rate / 2), num_features + 2)
  corners = np.where(mels < 15, 200 * mels / 3, 1000 * np.exp((mels - 15) * step))
  hertz = np.linspace(0, rate / 2, window // 2 + 1)[:, None]
  low, middle, high = corners[:-2], corners[1:-1], corners[2:]
  rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
  return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
