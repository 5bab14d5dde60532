"""Masked language modelling (BERT, https://arxiv.org/abs/1810.04805; with new masks in each epoch as in
RoBERTa, https://arxiv.org/abs/1907.11692)."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import Fraction, Range
from t2x.data import Chain, MaskTokens, SingleTokens, TokenChoice, Tokenizer
from t2x.data.batches import Transform
from t2x.models.language_model import select
from t2x.tasks.distillation import DistillableTokens

__all__ = ['MaskedLM']

# Placeholder for the mask token of every tokenizer.
MASK = '<mask>'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenTokens(DistillableTokens):
  """Base class of tasks that predict tokens chosen at random from a row; subclasses define how the model sees them.

  Attributes:
    length: tokens per row.
    packing: the packing of documents, called with the tokens per row. `ConcatenateAndSplit` and
      `BestFitDocuments` hide the documents of a row from each other. With `FullRows` and `RestartPositions`
      they see each other, and an incomplete last row is dropped.
    rate: fraction of the tokens to predict.
    choose: chooses the tokens: `SingleTokens`, `WholeWords` or `NGrams` of words.
  """

  rate: Annotated[float, Range('0 < x <= 1')] = 0.15
  choose: TokenChoice = SingleTokens()

  target: ClassVar[str] = 'labels'
  target_axis: ClassVar[str | None] = None
  data_fields: ClassVar[frozenset[str]] = DistillableTokens.data_fields | {'rate', 'choose'}

  @property
  def max_predictions(self) -> int:
    """Maximum number of predicted tokens per row."""
    return math.ceil(self.rate * self.length)

  @property
  def choices(self) -> Sequence[Transform]:
    """The transforms that choose tokens of a row."""
    raise NotImplementedError

  def transform(self, *, train):
    """Returns the transform that chooses tokens; evaluation uses a fixed seed and so fixed choices."""
    first = self.resegment({'tokens': self.length}, train)
    parts = [*(() if first is None else (first,)), *self.choices]
    return parts[0] if len(parts) == 1 else Chain(tuple(parts))

  def chosen(self, mask_rate: float, random_rate: float) -> MaskTokens:
    """Returns the choice, with these fractions of the chosen tokens replaced; see `MaskTokens`."""
    return MaskTokens(
      tokenizer=self.fitted,
      rate=self.rate,
      mask_rate=mask_rate,
      random_rate=random_rate,
      choose=self.choose,
      max_predictions=self.max_predictions,
    )

  def spec(self, batch_size):
    """Returns the shapes of the rows, and of the positions, labels and weights of the predictions."""
    row = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
    predicted = jax.ShapeDtypeStruct((batch_size, self.max_predictions), jnp.int32)
    return {
      'tokens': row,
      'segments': row,
      'positions': row,
      'masked_positions': predicted,
      'labels': predicted,
      'weights': jax.ShapeDtypeStruct(predicted.shape, jnp.float32),
    }

  def target_weights(self, batch):
    return batch['weights']

  def hidden(self, model, batch, key):
    return model.hidden(batch['tokens'], tokens=self.row_tokens(batch), key=key)

  def targets_of(self, x, batch):
    return select(x, batch['masked_positions'])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(ChosenTokens):
  """Predicts the masked tokens of a row.

  Attributes:
    mask_rate: fraction of the predicted tokens that are replaced by the mask token.
    random_rate: fraction of the predicted tokens that are replaced by a random token; the rest is unchanged.
  """

  mask_rate: Fraction = 0.8
  random_rate: Fraction = 0.1

  data_fields: ClassVar[frozenset[str]] = ChosenTokens.data_fields | {'mask_rate', 'random_rate'}

  @property
  def choices(self):
    return [self.chosen(self.mask_rate, self.random_rate)]

  def sums(self, model, batch, key, teacher=None):
    """Returns loss and accuracy over the masked tokens."""
    output = super().sums(model, batch, key, teacher)
    metrics = dict(output.metrics)
    metrics['masked_accuracy'] = metrics.pop('accuracy')
    return dataclasses.replace(output, metrics=metrics)

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
