"""Autoregressive generation: greedy decoding, sampling and beam search, in one jitted loop over the
model's cache."""

from t2x.decode.beam import Beam
from t2x.decode.generate import generate
from t2x.decode.penalties import GNMT, AverageLength, LengthPenalty
from t2x.decode.processors import (
  ForceFirst,
  ForceLast,
  GeneratedOnly,
  History,
  MinLength,
  MinNewTokens,
  NoRepeatNGram,
  Processor,
  RepetitionPenalty,
  SuppressTokens,
)
from t2x.decode.sampling import Greedy, Sampling, keep_top_k, keep_top_p
from t2x.decode.stopping import AtCurrentLength, Stopping, WhenCertain, WhenFull
from t2x.decode.strategy import Generated, Request, Strategy

__all__ = [
  'GNMT',
  'AtCurrentLength',
  'AverageLength',
  'Beam',
  'ForceFirst',
  'ForceLast',
  'Generated',
  'GeneratedOnly',
  'Greedy',
  'History',
  'LengthPenalty',
  'MinLength',
  'MinNewTokens',
  'NoRepeatNGram',
  'Processor',
  'RepetitionPenalty',
  'Request',
  'Sampling',
  'Stopping',
  'Strategy',
  'SuppressTokens',
  'WhenCertain',
  'WhenFull',
  'generate',
  'keep_top_k',
  'keep_top_p',
]
