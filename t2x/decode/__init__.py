"""Turning an autoregressive model into sequences: greedy, sampling and beam search, all run by one
jitted loop over the model's cache."""

from t2x.decode.beam import Beam
from t2x.decode.generate import generate
from t2x.decode.penalties import GNMT, AverageLength, LengthPenalty
from t2x.decode.sampling import Greedy, Sampling, keep_top_k, keep_top_p
from t2x.decode.strategy import Generated, Request, Strategy

__all__ = [
  'GNMT',
  'AverageLength',
  'Beam',
  'Generated',
  'Greedy',
  'LengthPenalty',
  'Request',
  'Sampling',
  'Strategy',
  'generate',
  'keep_top_k',
  'keep_top_p',
]
