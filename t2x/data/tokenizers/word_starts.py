"""Word boundaries in sequences of token ids."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int


@dataclasses.dataclass(frozen=True)
class WordBoundaries:
  """Masks over the vocabulary: the pieces that begin a word and the pieces that end one."""

  begins: Bool[np.ndarray, 'vocab']
  ends: Bool[np.ndarray, 'vocab']

  @classmethod
  def from_pieces(
    cls, surfaces: Sequence[str], special: Bool[np.ndarray, 'vocab']
  ) -> 'WordBoundaries':
    """Derives the boundaries from the white space in the pieces.

    A piece of one space begins a word; a piece of several spaces ends one.

    Args:
      surfaces: the text of each piece, with spaces as ' '.
      special: True for special ids, which begin and end a word.
    """
    begins = np.array([surface[:1] in (' ', '\n', '\t') for surface in surfaces])
    ends = np.array([s[-1:] in ('\n', '\t') or s == ' ' * len(s) != ' ' for s in surfaces])
    return cls(special | begins, special | ends)

  def starts(self, ids: Int[np.ndarray, 'length']) -> Bool[np.ndarray, 'length']:
    """Returns True for the first token, tokens that begin a word and tokens after the end of a word."""
    starts = self.begins[ids]
    starts[1:] |= self.ends[ids[:-1]]
    starts[:1] = True
    return starts
