"""Where words begin in a row of ids, told from what the ids stand for."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int


@dataclasses.dataclass(frozen=True)
class Words:
  """By id: does the piece begin a word, and does it end one?"""

  begins: Bool[np.ndarray, 'vocab']
  ends: Bool[np.ndarray, 'vocab']

  @classmethod
  def of(cls, surfaces: Sequence[str], special: Bool[np.ndarray, 'vocab']) -> 'Words':
    """From the text of each piece, spaces as spaces; a space alone begins a word, two end one."""
    begins = np.array([surface[:1] in (' ', '\n', '\t') for surface in surfaces])
    ends = np.array([s[-1:] in ('\n', '\t') or s == ' ' * len(s) != ' ' for s in surfaces])
    return cls(special | begins, special | ends)

  def starts(self, ids: Int[np.ndarray, 'length']) -> Bool[np.ndarray, 'length']:
    """True where a word begins: at pieces that begin one, after those that end one, and at first."""
    starts = self.begins[ids]
    starts[1:] |= self.ends[ids[:-1]]
    starts[:1] = True
    return starts
