"""Random patterns and marked rows, and what is true of the tiles of a mask."""

import numpy as np
from hypothesis import strategies as st

from t2x.layers.patterns.algebra import (
  Causal,
  Full,
  Global,
  Marked,
  Prefix,
  Window,
)
from t2x.layers.patterns.big_bird import BigBird
from t2x.layers.patterns.ordered import Hidden
from t2x.layers.patterns.sparse import Blocks, Fixed, Strided
from t2x.layers.patterns.tiles import FULL, PARTIAL, SKIP
from t2x.layers.tokens import RowLayout, Tokens

small = st.integers(1, 9)
leaves = st.one_of(
  st.sampled_from([Full(), Causal(), Prefix(), Marked('global'), Hidden('global')]),
  st.builds(Window, small, st.integers(1, 4)),
  st.builds(Global, small),
  st.builds(Blocks, small, st.integers(0, 5)),
  st.builds(Strided, small),
  st.builds(lambda last, more: Fixed(last + more, last), small, small),
  st.builds(lambda block, seed: BigBird(640, block, 9, seed=seed), small, st.integers(0, 3)),
)
patterns = st.recursive(
  leaves,
  lambda inner: st.one_of(
    st.builds(lambda a, b: a & b, inner, inner),
    st.builds(lambda a, b: a | b, inner, inner),
    st.builds(lambda a: ~a, inner),
  ),
  max_leaves=5,
)


def true_verdicts(mask: np.ndarray, q_block: int, k_block: int) -> np.ndarray:
  rows = [mask[i : i + q_block] for i in range(0, mask.shape[0], q_block)]
  tiles = [[row[:, j : j + k_block] for j in range(0, mask.shape[1], k_block)] for row in rows]
  return np.array([[FULL if t.all() else PARTIAL if t.any() else SKIP for t in r] for r in tiles])


def marked(rng, length, batch=1):
  """Rows of random marks, as NumPy arrays."""
  marks = {name: rng.random((batch, length)) < 0.3 for name in ('prefix', 'global')}
  positions = np.arange(length)[None]
  return Tokens(positions, marks=marks, layout=RowLayout.CONTIGUOUS)
