"""RoPE for longer texts than a model was first trained on: its frequencies, slowed down."""

import abc
import dataclasses

import numpy as np
from jaxtyping import Float

from t2x.ranges import Positive, Size


class RoPEScaling(abc.ABC):
  """A rule from frequencies to others; a frozen dataclass."""

  @abc.abstractmethod
  def __call__(self, frequencies: Float[np.ndarray, ' num']) -> Float[np.ndarray, ' num']:
    """Angles a position, by pair of features -> those that are used."""


@dataclasses.dataclass(frozen=True)
class LinearScaling(RoPEScaling):
  """All are divided by `factor`: positions interpolated (https://arxiv.org/abs/2306.15595)."""

  factor: Positive

  def __call__(self, frequencies):
    return frequencies / np.float32(self.factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3Scaling(RoPEScaling):
  """Slow ones are divided by `factor`, fast ones kept (Llama 3.1, https://arxiv.org/abs/2407.21783).

  Attributes:
    factor: how much slower.
    max_length: of the first training.
    low_frequency: those that turn fewer times than this in `max_length` positions are slow.
    high_frequency: those that turn more often than this are fast; between the two the divisor goes
      over smoothly.
  """

  factor: Positive = 8.0
  max_length: Size = 8192
  low_frequency: Positive = 1.0
  high_frequency: Positive = 4.0

  def __call__(self, frequencies):
    turns = self.max_length * frequencies / (2 * np.pi)
    span = self.high_frequency - self.low_frequency
    fast = np.clip((turns - self.low_frequency) / span, 0.0, 1.0)
    return (frequencies * (fast + (1 - fast) / self.factor)).astype(np.float32)
