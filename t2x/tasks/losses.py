"""Sums of metrics that tasks compute from logits; the cross-entropy itself is that of `t2x.models`."""

from collections.abc import Sequence

from jaxtyping import Array, Float, Int

from t2x.models.losses import Sums


def f1_sums(
  predicted: Int[Array, '*batch'],
  labels: Int[Array, '*batch'],
  weights: Float[Array, '*batch'],
  names: Sequence[str],
) -> Sums:
  """F1 of each class, as the quotient of two counts that can be summed: `f1/NAME` is twice the hits
  over how often the class is predicted plus how often it is the label."""
  sums = {}
  for number, name in enumerate(names):
    told, true = ((which == number) * weights for which in (predicted, labels))
    hits = (told * (labels == number)).sum()
    sums[f'f1/{name}'] = (2 * hits, told.sum() + true.sum())
  return sums
