"""Interaction matrices: which key each query of a row sees under an attention pattern."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from t2x.layers import Pattern, Tokens
from t2x.look.pattern_images import example_marks

__all__ = ['InteractionMatrix', 'interaction_matrix', 'matrices_of']


@dataclasses.dataclass(frozen=True)
class InteractionMatrix:
  """The mask of an attention pattern.

  Attributes:
    title: where the pattern is used, or its name.
    pattern: the pattern as an expression.
    mask: whether each query sees each key.
    marks: marked positions by name, for patterns that read marks.
  """

  title: str
  pattern: str
  mask: Bool[np.ndarray, 'queries keys']
  marks: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

  @property
  def share(self) -> float:
    """Share of the pairs of query and key that are visible."""
    return float(self.mask.mean())


def interaction_matrix(
  title: str, pattern: Pattern, length: int, tokens: Tokens | None = None
) -> InteractionMatrix:
  """Returns the matrix of a pattern; patterns that read marks get example marks.

  Args:
    title: title of the picture.
    pattern: the pattern.
    length: number of queries and keys.
    tokens: metadata of `length` tokens, for patterns that read more than positions and marks.
  """
  marks = example_marks(pattern, length)
  positions = np.arange(length)[None]
  masks = {name: np.isin(positions, list(marked)) for name, marked in marks.items()}
  row = Tokens(positions) if tokens is None else tokens
  row = dataclasses.replace(row, marks=masks)
  return InteractionMatrix(title, repr(pattern), pattern.mask(row, row), marks)


def matrices_of(
  patterns: Mapping[str, Sequence[Pattern]], length: int, tokens: Tokens | None = None
) -> tuple[InteractionMatrix, ...]:
  """Returns one matrix for each different pattern of the blocks of some bodies.

  Args:
    patterns: the pattern of each block of one repeat of a stack, by body ('' for the only one).
    length: number of queries and keys.
    tokens: see `interaction_matrix`.
  """
  places: dict[Pattern, list[str]] = {}
  for body, blocks in patterns.items():
    for own in dict.fromkeys(blocks):
      places.setdefault(own, []).append(_title(body, [p == own for p in blocks]))
  return tuple(
    interaction_matrix(', '.join(titles), pattern, length, tokens)
    for pattern, titles in places.items()
  )


def _title(body: str, uses: Sequence[bool]) -> str:
  blocks = [i + 1 for i, used in enumerate(uses) if used]
  if len(blocks) == len(uses):
    return f'all layers of the {body}' if body else 'all layers'
  where = f'block {", ".join(map(str, blocks))} of {len(uses)} in turn'
  return f'{where} ({body})' if body else where
