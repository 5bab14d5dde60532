"""Autoregressive generation: greedy decoding, sampling and beam search, in one jitted loop over the
model's cache."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.decode.beam import *
  from t2x.decode.diverse import *
  from t2x.decode.generation import *
  from t2x.decode.penalties import *
  from t2x.decode.processors import *
  from t2x.decode.sampling import *
  from t2x.decode.stopping import *
  from t2x.decode.strategy import *
else:
  __getattr__, __dir__ = exports(__name__)
