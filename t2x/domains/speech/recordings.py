"""Recordings: WAV files and their sampling rate."""

import io
import math
import wave
from pathlib import Path

import numpy as np
from jaxtyping import Float

from t2x.base.errors import UserError
from t2x.base.external_files import read_bytes

__all__ = ['read_recording', 'resampled']

# Maximum size of a file in bytes, and the rates that are read.
LIMIT = 1 << 31
RATES = range(100, 1_000_001)


def read_recording(path: Path) -> tuple[Float[np.ndarray, ' samples'], int]:
  """Returns the samples of a WAV file, from -1 to 1, and their number per second; channels are averaged.

  Raises:
    UserError: the file cannot be read, is no WAV file of 16 bits per sample, or has fewer samples
      than its header declares.
  """
  content = read_bytes(path, LIMIT)
  try:
    with wave.open(io.BytesIO(content)) as file:
      rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
      count = file.getnframes()
      data = file.readframes(count)
  except (EOFError, wave.Error, RuntimeError, ValueError, OverflowError) as error:
    raise UserError(
      f'{path} cannot be read: {error or "it ends early"} (write it as WAV with 16 bits per sample)'
    ) from error
  if width != 2:
    raise UserError(
      f'{path} has {8 * width} bits per sample: write it as WAV with 16 bits per sample'
    )
  if len(data) != count * width * channels:
    raise UserError(
      f'{path} ends after {len(data) // (width * channels):,} of {count:,} samples: it was cut off, write it again'
    )
  if rate not in RATES:
    raise UserError(
      f'{path} has {rate:,} samples per second: must have {RATES[0]} to {RATES[-1]:,}'
    )
  samples = np.frombuffer(data, '<i2').reshape(-1, channels)
  return samples.mean(axis=1, dtype=np.float32) / np.float32(32768), rate


def resampled(
  samples: Float[np.ndarray, ' samples'], rate: int, to: int
) -> Float[np.ndarray, ' resampled']:
  """Returns a recording at another number of samples per second, by scipy's polyphase filter.

  Args:
    samples: the recording.
    rate: samples per second.
    to: samples per second of the result.

  Raises:
    UserError: scipy is not installed.
  """
  if rate == to:
    return samples
  # It takes a second to import.
  from scipy.signal import resample_poly

  divisor = math.gcd(rate, to)
  return resample_poly(samples, to // divisor, rate // divisor).astype(np.float32)
