"""Cross-entropy as a sum and a weight, so that accumulation and sharding do not change the result."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2x.hyperparameters import Tunable, scalar
from t2x.layers.dtypes import Dtypes

__all__ = ['Sums', 'classification_sums', 'cross_entropy', 'f1_sums']

# Name -> (sum over what was counted, how much was counted). A metric is their quotient.
Sums = dict[str, tuple[Array, Array]]


def cross_entropy(
  logits: Float[Array, '*batch classes'], labels: Int[Array, '*batch'], smoothing: Tunable = 0.0
) -> Float[Array, '*batch']:
  """-log p(label) in float32; with `smoothing` s the target is (1 - s) on the label and s spread
  evenly over all classes (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567)."""
  logits = logits.astype(Dtypes.logits)
  normaliser = jax.nn.logsumexp(logits, axis=-1)
  picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
  loss = normaliser - picked
  if smoothing != 0.0:
    share = scalar(smoothing)
    loss = (1.0 - share) * loss + share * (normaliser - logits.mean(axis=-1))
  return loss


def classification_sums(
  logits: Float[Array, '*batch classes'],
  labels: Int[Array, '*batch'],
  weights: Float[Array, '*batch'],
  smoothing: Tunable = 0.0,
) -> Sums:
  """Weighted sums of the loss and of correct guesses; weight 0 leaves an element out."""
  total = weights.sum()
  correct = (jnp.argmax(logits, axis=-1) == labels) * weights
  loss = cross_entropy(logits, labels, smoothing) * weights
  return {'loss': (loss.sum(), total), 'accuracy': (correct.sum(), total)}


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
