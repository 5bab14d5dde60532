"""Ranks and choices for metrics, in which ties and NaN count against the model.

A model with the same score for all candidates knows nothing, and an index of a maximum would favour the first of them.
The functions take arrays of NumPy and of JAX.
"""

from typing import Any

from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

# Difference up to which products of float32 vectors of unit length may differ by the order of a sum.
ROUNDING = 1e-6


def exceeds(
  own: Float[Any, '*batch'], others: Float[Any, '*batch candidates'], rounding: ArrayLike = 0.0
) -> Bool[Any, '*batch candidates']:
  """Returns which scores the own score exceeds by more than `rounding`; none if it is NaN, and no NaN."""
  return own[..., None] > others + rounding


def rank(
  own: Float[Any, '*batch'],
  others: Float[Any, '*batch candidates'],
  compared: Bool[Any, '*#batch candidates'],
  rounding: ArrayLike = 0.0,
) -> Int[Any, '*batch']:
  """Returns the rank of the own score, from 1: candidates with the same score or NaN are before it.

  Args:
    own: score of the correct candidate.
    others: scores of candidates.
    compared: which of them are other candidates.
    rounding: difference up to which scores count as equal.
  """
  return 1 + (~exceeds(own, others, rounding) & compared).sum(axis=-1)


def choice(
  scores: Float[Any, '*batch candidates'], rounding: ArrayLike = 0.0
) -> Int[Any, '*batch']:
  """Returns the index of the largest score; -1, which is no candidate, if several are the largest or one is NaN.

  Args:
    scores: scores of candidates.
    rounding: difference up to which scores count as equal.
  """
  # Of all candidates but one, NaN included: a maximum that XLA fuses with other operations on a CPU ignores NaN.
  below = (scores < scores.max(axis=-1, keepdims=True) - rounding).sum(axis=-1)
  return (below == scores.shape[-1] - 1) * (scores.argmax(axis=-1) + 1) - 1
