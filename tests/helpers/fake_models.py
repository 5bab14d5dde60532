"""What models made for tests share: facts about them, and a loss computed from their logits."""

from t2x.layers import Input
from t2x.models import ModelSpec
from t2x.models.losses import classification_sums

ONE = {'tokens': 'ids'}
PAIR = {'source': 'ids', 'target': 'ids'}
IMAGE = {'image': 'image'}


def spec(
  inputs=ONE, outputs='token logits', patterns=(), vocab_size=None, max_length=None, **facts
):
  """A `ModelSpec` with one kind of outputs; the sizes are those of every text."""

  def described(kind):
    if kind != 'ids':
      return Input(kind, (None, None, None), 'float32')
    return Input(kind, max_length=max_length, vocab_size=vocab_size)

  named = {name: described(kind) for name, kind in inputs.items()}
  return ModelSpec(inputs=named, outputs=frozenset({outputs}), patterns=tuple(patterns), **facts)


class WithLogits:
  """Adds the loss to a class with `logits`."""

  def cross_entropy(self, x, labels, weights, *, smoothing=0.0, z_loss=0.0, axes=()):
    return classification_sums(self.logits(x), labels, weights, smoothing, z_loss)
