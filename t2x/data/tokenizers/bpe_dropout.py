"""BPE by hand, with merges left out at random (Provilkov et al. 2020,
https://arxiv.org/abs/1910.13267): the libraries' own dropout is not the same in every process."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np


def merged(
  word: Sequence[str],
  ranks: Mapping[tuple[str, str], int],
  rate: float,
  rng: np.random.Generator,
) -> list[str]:
  """The pieces of a word.

  Args:
    word: its characters.
    ranks: pair -> when it is merged; the lowest rank first, and of equals the leftmost.
    rate: part of the possible merges that are left out, drawn anew after each merge.
    rng: what they are drawn from.
  """
  pieces = list(word)
  while True:
    pairs = enumerate(itertools.pairwise(pieces))
    found = sorted((ranks[pair], i) for i, pair in pairs if pair in ranks)
    i = next((i for _, i in found if rng.random() >= rate), None)
    if i is None:
      return pieces
    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
