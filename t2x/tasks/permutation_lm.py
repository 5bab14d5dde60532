"""Permutation language modelling (XLNet: Yang et al. 2019, https://arxiv.org/abs/1906.08237)."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.base.ranges import Range
from t2x.data import OrderTokens
from t2x.tasks.masked_lm import ChosenTokens

__all__ = ['PermutationLM']


@dataclasses.dataclass(frozen=True, kw_only=True)
class PermutationLM(ChosenTokens):
  """Predicts the last tokens of a random order of a row, each from all tokens before it in the order (section 2.3).

  All remaining tokens, the context, see each other. The model reads `Tokens.order`, as `TwoStreams` does, and no token
  is masked. The published data chooses spans instead of single tokens.

  Attributes:
    rate: fraction of the tokens to predict, the 1 / K of the paper.
  """

  rate: Annotated[float, Range('0 < x <= 1')] = 1 / 6

  @property
  def choices(self):
    return [self.chosen(0.0, 0.0), OrderTokens()]

  def spec(self, batch_size):
    """Returns the shapes of the rows, and of the positions, labels and weights of the predictions."""
    order = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
    return {**super().spec(batch_size), 'order': order}

  def check_model(self, model):
    """Also raises UserError if a layer of the model does not read the order, so that tokens would see themselves."""
    super().check_model(model)
    if not all('order' in pattern.reads for pattern in model.spec.patterns):
      raise UserError(
        'PermutationLM needs a model whose layers read the order of prediction: bind Encoder.stack = @TwoStreams'
      )

  def hidden(self, model, batch, key):
    tokens = dataclasses.replace(self.row_tokens(batch), order=batch['order'])
    return model.hidden(batch['tokens'], tokens=tokens, key=key)

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Raises UserError: the tokens of a row are predicted in random order."""
    raise UserError('a permutation language model does not continue texts: use a CausalLM')
