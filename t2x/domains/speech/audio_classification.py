"""Classification of recordings by the front end of Whisper (https://arxiv.org/abs/2212.04356)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from t2x.data import check_label
from t2x.domains.speech.spectrograms import LogMel
from t2x.domains.speech.transcription import SpeechModality
from t2x.models import Inputs
from t2x.tasks.classification import Classification

__all__ = ['AudioClassification']


@dataclasses.dataclass(frozen=True, kw_only=True)
class AudioClassification(Classification):
  """Predicts the class of a recording from its mel spectrogram. `audio` of an example is what the source of
  `Transcription` is: samples, or the path of a WAV file.

  Attributes:
    features: computes the frames; recordings are cut, or padded with silence, to their number.
  """

  features: LogMel = LogMel()

  inputs: ClassVar[Inputs] = {'audio': 'audio'}
  answers_prompts: ClassVar[bool] = True

  def read(self, path):
    """Returns the path of a WAV file, which `transform` reads."""
    return str(path)

  def transform(self, *, train):
    """Returns the transform that computes the frames of a recording, in training as in evaluation."""
    return PrepareAudio(self.features, self.num_classes)

  def spec(self, batch_size):
    """Returns audio: float32 [batch, frames, features]; label: int32 and weight: float32 [batch]."""
    shape = batch_size, self.features.num_frames, self.features.num_features
    return {'audio': jax.ShapeDtypeStruct(shape, jnp.float32), **super().spec(batch_size)}


@dataclasses.dataclass(frozen=True)
class PrepareAudio:
  """Prepares `audio` and `label` for a model.

  Attributes:
    features: computes the frames.
    num_classes: number of classes, for a check of the labels.
  """

  features: LogMel
  num_classes: int = dataclasses.field(repr=False, compare=False)

  def __call__(self, row, rng):
    """Returns `audio` float32 [frames, features], `label` int32 and `weight` float32 (1)."""
    check_label(row['label'], self.num_classes, 'a recording')
    frames = SpeechModality(features=self.features).prepare(row['audio'], rng)['source']
    return {'audio': frames, 'label': np.int32(row['label']), 'weight': np.float32(1.0)}
