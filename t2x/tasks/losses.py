"""Metrics of classification tasks; the cross-entropy is in `t2x.models.losses`."""

from collections.abc import Sequence

from jaxtyping import Array, Float, Int

from t2x.models.losses import Sums


def f1_sums(
  predicted: Int[Array, '*batch'],
  labels: Int[Array, '*batch'],
  weights: Float[Array, '*batch'],
  names: Sequence[str],
) -> Sums:
  """Returns the F1 of each class as a pair of counts that can be summed over batches.

  `f1/NAME` is (2 * true positives, predictions + labels).
  """
  sums = {}
  for number, name in enumerate(names):
    is_predicted, is_label = ((ids == number) * weights for ids in (predicted, labels))
    hits = (is_predicted * (labels == number)).sum()
    sums[f'f1/{name}'] = (2 * hits, is_predicted.sum() + is_label.sum())
  return sums
