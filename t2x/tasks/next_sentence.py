"""Masked language modelling of pairs of texts, and the prediction whether the second follows the first: next sentence
prediction (BERT, https://arxiv.org/abs/1810.04805, section 3.1) and sentence order prediction (ALBERT,
https://arxiv.org/abs/1909.11942, section 3.1)."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import NonNegative
from t2x.data import Chain, Negatives, PairSentences, SentenceRows, Unrelated
from t2x.layers import named_key
from t2x.models.losses import classification_sums
from t2x.tasks.auxiliary import Auxiliary, AuxiliaryOutput, check_columns
from t2x.tasks.masked_lm import MaskedLM

__all__ = ['MaskedPairs', 'NextSentence']


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedPairs(MaskedLM):
  """Predicts the masked tokens of pairs of texts, whose second text follows the first or does not.

  Pairs and masks are drawn anew in each epoch, from the documents of one split. The auxiliary `NextSentence` predicts
  whether the second text follows.

  Attributes:
    packing: divides documents into rows of sentences, called with the tokens per row.
    negatives: makes the pairs whose second text does not follow: `Unrelated` (next sentence prediction) or `Swapped`
      (sentence order prediction).
  """

  packing: Callable[..., SentenceRows] = SentenceRows  # type: ignore[assignment]
  negatives: Negatives = Unrelated()

  data_fields: ClassVar[frozenset[str]] = MaskedLM.data_fields | {'negatives'}
  has_types: ClassVar[bool] = True

  def __post_init__(self):
    if self.pieces is not None:
      raise UserError('MaskedPairs does not sample segmentations: leave out MaskedPairs.pieces')

  def transform(self, *, train):
    """Returns the transform that draws pairs and then masks; both are fixed in evaluation."""
    pairs = PairSentences(tokenizer=self.fitted, length=self.length, negatives=self.negatives)
    return Chain((pairs, super().transform(train=train)))

  def spec(self, batch_size):
    """Returns the arrays of `MaskedLM` with types: int32 [batch, length] and next: int32 [batch], without positions."""
    spec = super().spec(batch_size)
    del spec['positions']
    return spec | {'types': spec['tokens'], 'next': jax.ShapeDtypeStruct((batch_size,), jnp.int32)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextSentence(Auxiliary):
  """Predicts from the pooled vector of a pair whether its second text follows the first.

  Class 0 follows, as in the released weights of BERT and ALBERT.

  Attributes:
    weight: coefficient of the loss; 1 in BERT.
  """

  weight: NonNegative = 1.0

  def check_model(self, model, task):
    """Raises UserError if the task has no pairs, or the head has no classifier of two classes."""
    check_columns('NextSentence', task, 'next', 'segments')
    if 'class logits' not in model.spec.outputs or model.spec.num_classes != 2:
      raise UserError(
        f'NextSentence needs two class logits, but the head of @{type(model).__name__} has '
        f'{model.spec.num_classes or "none"}: bind @SequenceClassifier with two classes and a language_head'
      )

  def term_weight(self, batch, weights):
    """Returns the number of pairs."""
    return _present(batch, weights).sum()

  def __call__(self, model, out, batch, weights, key):
    """Returns the loss term, and `loss` and `accuracy`."""
    logits = model.head.classify(out.x, batch['segments'], named_key(key, 'head'))
    sums = classification_sums(logits, 1 - batch['next'], _present(batch, weights))
    return AuxiliaryOutput(self.weight * sums['loss'][0], sums)


def _present(batch, weights):
  """Returns the loss weight of each row, 0 for rows of padding."""
  rows = batch.get('loss_weight', jnp.ones(len(weights)))
  return rows * (batch['segments'][:, 0] != 0)
