"""Speech: recordings, spectrograms, the stem of audio encoders, transcription and its word error rate."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.domains.speech.audio_classification import *
  from t2x.domains.speech.audio_stem import *
  from t2x.domains.speech.recordings import *
  from t2x.domains.speech.spectrograms import *
  from t2x.domains.speech.transcription import *
  from t2x.domains.speech.word_errors import *
else:
  __getattr__, __dir__ = exports(__name__)
