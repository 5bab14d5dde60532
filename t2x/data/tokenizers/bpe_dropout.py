"""BPE dropout (Provilkov et al. 2020, https://arxiv.org/abs/1910.13267).

Implemented here because the dropout of the tokenizer libraries is not reproducible across processes.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np


def apply_merges(
  word: Sequence[str],
  ranks: Mapping[tuple[str, str], int],
  rate: float,
  rng: np.random.Generator,
) -> list[str]:
  """Splits a word into pieces by BPE with dropped merges.

  Args:
    word: its characters.
    ranks: pair -> rank. The pair with the lowest rank is merged first; ties go to the leftmost pair.
    rate: probability of dropping each possible merge, drawn again after each merge.
    rng: random generator.
  """
  pieces = list(word)
  while True:
    pairs = enumerate(itertools.pairwise(pieces))
    candidates = sorted((ranks[pair], i) for i, pair in pairs if pair in ranks)
    i = next((i for _, i in candidates if rng.random() >= rate), None)
    if i is None:
      return pieces
    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
