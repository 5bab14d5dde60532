"""What models made for tests share: facts about them, and a loss computed from their logits."""

from t2x.models import ModelSpec
from t2x.models.losses import classification_sums


def spec(inputs='a text', outputs='token logits', patterns=(), **facts):
  """A `ModelSpec` with one kind of outputs."""
  return ModelSpec(inputs=inputs, outputs=frozenset({outputs}), patterns=tuple(patterns), **facts)


class WithLogits:
  """Adds the loss to a class with `logits`."""

  def cross_entropy(self, x, labels, weights, *, smoothing=0.0, z_loss=0.0, axes=()):
    return classification_sums(self.logits(x), labels, weights, smoothing, z_loss)
