"""Masked language modelling (BERT, https://arxiv.org/abs/1810.04805; with new masks in each epoch as in
RoBERTa, https://arxiv.org/abs/1907.11692)."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import Fraction, Range, Size, TunableNonNegative
from t2x.data import (
  ConcatenateAndSplit,
  DocumentPlan,
  MaskTokens,
  SingleTokens,
  TokenChoice,
  Tokenizer,
)
from t2x.layers.constraints import constrain
from t2x.models import Output, TextModel
from t2x.models.language_model import select
from t2x.tasks.distillation import TeacherLoss
from t2x.tasks.marks import MarkRule
from t2x.tasks.text import TextTask, chained, hidden_of, in_training

__all__ = ['MaskedLM']

# Placeholder for the mask token of every tokenizer.
MASK = '<mask>'


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(TextTask):
  """Predicts the masked tokens of a row.

  Attributes:
    length: tokens per row.
    packing: the packing of documents, called with the tokens per row. `ConcatenateAndSplit` and
      `BestFitDocuments` hide the documents of a row from each other. With `FullRows` and `RestartPositions`
      they see each other, and an incomplete last row is dropped.
    marks: rules by the names of the marks that they set, as in `CausalLM`.
    rate: fraction of the tokens to predict.
    choose: chooses the tokens: `SingleTokens`, `WholeWords` or `NGrams` of words.
    mask_rate: fraction of the predicted tokens that are replaced by the mask token.
    random_rate: fraction of the predicted tokens that are replaced by a random token; the rest is unchanged.
    z_loss: coefficient of logsumexp(logits)^2, added to the loss of each token in training only.
    distillation: the teacher's term, `Distillation` or `HardDistillation`; None without a teacher.

  Raises:
    UserError: `pieces` is set and rows are one segment without padding.
  """

  length: Size
  packing: Callable[..., DocumentPlan] = ConcatenateAndSplit
  marks: Mapping[str, MarkRule] = dataclasses.field(default_factory=dict)
  rate: Annotated[float, Range('0 < x <= 1')] = 0.15
  choose: TokenChoice = SingleTokens()
  mask_rate: Fraction = 0.8
  random_rate: Fraction = 0.1
  z_loss: TunableNonNegative = 0.0
  distillation: TeacherLoss | None = None

  learns_from_teacher: ClassVar[bool] = True
  data_fields: ClassVar[frozenset[str]] = TextTask.data_fields | {
    'rate',
    'choose',
    'mask_rate',
    'random_rate',
  }
  # Whether the rows have `types`, and are single texts or pairs instead of packed documents.
  has_types: ClassVar[bool] = False

  @property
  def max_predictions(self) -> int:
    """Maximum number of predicted tokens per row."""
    return num_predictions(self.rate, self.length)

  @property
  def masks(self) -> MaskTokens:
    """The transform that chooses tokens and masks them."""
    return MaskTokens(
      tokenizer=self.fitted,
      rate=self.rate,
      mask_rate=self.mask_rate,
      random_rate=self.random_rate,
      choose=self.choose,
      max_predictions=self.max_predictions,
    )

  def transform(self, *, train):
    """Returns the transform that masks tokens; evaluation uses a fixed seed and so fixed masks."""
    return chained(self.resegment({'tokens': self.length}, train), self.masks)

  def spec(self, batch_size):
    """Returns the shapes of the rows, and of the positions, labels and weights of the predictions."""
    return predicted_spec(batch_size, self.length, self.max_predictions)

  def target_weights(self, batch):
    return batch['weights']

  def hidden(
    self, model: TextModel, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> Output:
    """Returns the model's output with the hidden vectors of the rows."""
    if self.has_types:
      return hidden_of(model, batch, key, self.token_marks)
    return model.hidden(batch['tokens'], tokens=self.row_tokens(batch), key=key)

  def predictions(self, model, batch, key):
    """Returns the logits of the masked tokens, and the model's output."""
    out = self.hidden(model, batch, key)
    return predicted_logits(model, predicted(out, batch)), out

  def sums(self, model, batch, key, teacher=None):
    """Returns loss and accuracy over the masked tokens."""
    out = self.hidden(model, batch, key)
    x, labels, weights = predicted(out, batch), batch['labels'], self.weighted_targets(batch)
    z_loss = in_training(key, self.z_loss)
    sums = model.cross_entropy(x, labels, weights, z_loss=z_loss, axes=('batch', None))
    sums['masked_accuracy'] = sums.pop('accuracy')
    output = self.with_auxiliaries(sums, model, out, batch, key)
    return (
      output
      if teacher is None
      else self.distilled(output, predicted_logits(model, x), out.x, teacher, batch)
    )

  def check_prompt(self, prompt):
    check_masks(self.fitted, prompt)

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Raises UserError: a masked language model fills masks."""
    raise UserError('a masked language model does not continue texts: use fill_masks')


def mask_spelling(tokenizer: Tokenizer) -> str:
  """Returns the tokenizer's own spelling of the mask token, such as '[MASK]'.

  Raises:
    UserError: the tokenizer has no mask token.
  """
  if tokenizer.mask_id is None:
    raise UserError('the tokenizer has no mask token: masks cannot be filled')
  return tokenizer.pieces([tokenizer.mask_id])[0]


def check_masks(tokenizer: Tokenizer, prompt: str) -> None:
  """Raises UserError if the prompt has no mask."""
  own = mask_spelling(tokenizer)
  if MASK not in prompt and own not in prompt:
    spellings = MASK if own == MASK else f'{MASK} or {own}'
    raise UserError(
      f'the prompt has no mask to fill: write {spellings} in place of each missing token'
    )


def num_predictions(rate: float, length: int) -> int:
  """Returns the maximum number of predicted tokens per row."""
  return math.ceil(rate * length)


def predicted_spec(
  batch_size: int, length: int, predictions: int
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of rows, and of the positions, labels and weights of the predicted tokens."""
  row = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
  of_predictions = jax.ShapeDtypeStruct((batch_size, predictions), jnp.int32)
  return {
    'tokens': row,
    'segments': row,
    'positions': row,
    'masked_positions': of_predictions,
    'labels': of_predictions,
    'weights': jax.ShapeDtypeStruct(of_predictions.shape, jnp.float32),
  }


def predicted(out: Output, batch: Mapping[str, jax.Array]) -> jax.Array:
  """Returns the hidden vectors of the predicted tokens, [batch, predictions, d_model]."""
  return select(out.x, batch['masked_positions'])


def predicted_logits(model: TextModel, x: jax.Array) -> jax.Array:
  """Returns the logits of the hidden vectors of the predicted tokens."""
  return constrain(model.logits(x), 'batch', None, 'vocab')
