"""Attention kernels, which compute outputs from scores, values and a pattern. `Dense` is the reference."""

from t2x.layers.attention.kernels.auto import *
from t2x.layers.attention.kernels.base import *
from t2x.layers.attention.kernels.blockwise import *
from t2x.layers.attention.kernels.dense import *
from t2x.layers.attention.kernels.pallas_mha import *
from t2x.layers.attention.kernels.ring import *
from t2x.layers.attention.kernels.splash import *
from t2x.layers.attention.kernels.xla import *
