"""Scaling of RoPE frequencies for contexts longer than in the first training of a model."""

import abc
import dataclasses

import numpy as np
from jaxtyping import Float

from t2x.base.ranges import Positive, Size

__all__ = ['LinearScaling', 'Llama3Scaling', 'RoPEScaling']


class RoPEScaling(abc.ABC):
  """Maps RoPE frequencies to scaled frequencies; subclasses are frozen dataclasses."""

  @abc.abstractmethod
  def __call__(self, frequencies: Float[np.ndarray, ' num']) -> Float[np.ndarray, ' num']:
    """Returns the scaled frequencies, in radians per position, of each pair of features."""


@dataclasses.dataclass(frozen=True)
class LinearScaling(RoPEScaling):
  """Divides all frequencies by `factor`, which interpolates positions (https://arxiv.org/abs/2306.15595)."""

  factor: Positive

  def __call__(self, frequencies):
    return frequencies / np.float32(self.factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3Scaling(RoPEScaling):
  """Divides low frequencies by `factor` and keeps high frequencies (Llama 3.1,
  https://arxiv.org/abs/2407.21783).

  Attributes:
    factor: divisor of low frequencies.
    max_length: sequence length of the first training.
    low_frequency: frequencies of fewer turns than this in `max_length` positions are low.
    high_frequency: frequencies of more turns than this are high; the factor is interpolated between the
      two.
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
