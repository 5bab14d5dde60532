"""Masked language modelling (BERT, https://arxiv.org/abs/1810.04805; masks drawn anew each epoch as
in RoBERTa, https://arxiv.org/abs/1907.11692)."""

import dataclasses
import math
from typing import Annotated

import jax
import jax.numpy as jnp

from t2x.data import Chain, MaskTokens
from t2x.layers.constraints import constrain
from t2x.models.language_model import select
from t2x.ranges import Fraction, Range
from t2x.tasks.base import TaskOutput
from t2x.tasks.distillation import DistillableTask
from t2x.tasks.text import JoinedDocuments


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(DistillableTask, JoinedDocuments):
  """Predicts the hidden tokens of a row.

  Attributes:
    length: tokens a row.
    separate_documents: False lets tokens see the other documents of their row. Rows are then one segment
      and always full: the tokens of an incomplete last row are left out.
    rate: part of the tokens to be predicted.
    mask_rate: part of those replaced by the mask token.
    random_rate: part of those replaced by a random token; the rest stays as it was.
    whole_word: hides all pieces of a word together.
  """

  rate: Annotated[float, Range('0 < x <= 1')] = 0.15
  mask_rate: Fraction = 0.8
  random_rate: Fraction = 0.1
  whole_word: bool = False

  @property
  def max_predictions(self) -> int:
    """Places for predictions in a row."""
    return math.ceil(self.rate * self.length)

  def transform(self, *, train):
    """Masks; evaluation draws from a fixed seed, so that its masks are always the same."""
    masks = MaskTokens(
      tokenizer=self.fitted,
      rate=self.rate,
      mask_rate=self.mask_rate,
      random_rate=self.random_rate,
      whole_word=self.whole_word,
      max_predictions=self.max_predictions,
    )
    first = self.resegment({'tokens': self.length}, train)
    return masks if first is None else Chain((first, masks))

  def spec(self, batch_size):
    """A row's tokens, and the places, labels and weights of its predictions."""
    row = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
    picked = jax.ShapeDtypeStruct((batch_size, self.max_predictions), jnp.int32)
    return {
      'tokens': row,
      'segments': row,
      'positions': row,
      'masked_positions': picked,
      'labels': picked,
      'weights': jax.ShapeDtypeStruct(picked.shape, jnp.float32),
    }

  def target_weights(self, batch):
    """1 for each place of a prediction that is used."""
    return batch['weights']

  def _hidden(self, model, batch, key):
    """What the model returns, with the vectors of the hidden tokens alone."""
    out = model.hidden(batch['tokens'], tokens=self.row_tokens(batch), key=key)
    return dataclasses.replace(out, x=select(out.x, batch['masked_positions']))

  def predictions(self, model, batch, key):
    """The logits of the hidden tokens alone."""
    out = self._hidden(model, batch, key)
    return constrain(model.logits(out.x), 'batch', None, 'vocab'), out

  def sums(self, model, batch, key, teacher=None):
    """Loss and accuracy over the hidden tokens; logits are computed for them alone."""
    out = self._hidden(model, batch, key)
    sums = self.token_sums(model, out.x, batch['labels'], batch, key, length_axis=None)
    sums['masked_accuracy'] = sums.pop('accuracy')
    output = TaskOutput(sums, out.aux)
    if teacher is None:
      return output
    logits = constrain(model.logits(out.x), 'batch', None, 'vocab')
    return self.distilled(output, logits, self.target_weights(batch), teacher, batch)
