"""Auxiliary training objectives of a task."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.base.ranges import NonNegative
from t2x.models import TextModel
from t2x.models.losses import Sums
from t2x.tasks.text import check_causal

__all__ = ['Auxiliary', 'LanguageModelling']


@runtime_checkable
class Auxiliary(Protocol):
  """An additional loss on the hidden vectors of a task's batch."""

  def check_model(self, model: TextModel, length: int) -> None:
    """Raises UserError if the model cannot learn the objective from rows of `length` tokens."""

  def term_weight(
    self, batch: Mapping[str, jax.Array], weights: Float[Array, ' batch']
  ) -> Float[Array, '']:
    """Returns the weight of the loss term, before the forward pass.

    Args:
      batch: the batch of the step, with all micro-batches.
      weights: the weight of each row in the task's own loss term.
    """
    ...

  def __call__(
    self,
    model: TextModel,
    x: Float[Array, 'batch length d_model'],
    batch: Mapping[str, jax.Array],
    weights: Float[Array, ' batch'],
  ) -> tuple[Sums, Float[Array, '']]:
    """Returns metrics, and the sum of the loss term times its coefficient.

    Args:
      model: computes the logits.
      x: hidden vectors of the batch.
      batch: the batch or a micro-batch.
      weights: the weight of each row in the task's own loss term.
    """
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelling(Auxiliary):
  """GPT-1's joint objective: the task's loss + weight * the language modelling loss of the same texts.

  The loss is the mean over the tokens of a text, then over texts, and is reported as `lm_loss` (Radford et
  al. 2018, Improving Language Understanding by Generative Pre-Training, section 3.2).

  Attributes:
    weight: coefficient of the language modelling loss (lambda in the paper).
  """

  weight: NonNegative = 0.5

  def check_model(self, model, length):
    """Raises UserError if a block attends to later tokens."""
    check_causal(model, length, 'LanguageModelling')

  def term_weight(self, batch, weights):
    """Returns the number of texts."""
    return weights.sum()

  def __call__(self, model, x, batch, weights):
    """Returns the metric `lm_loss` and the loss term; tokens of segment 0 are padding."""
    tokens, segments = batch['tokens'], batch['segments']
    present = (segments[:, 1:] != 0).astype(jnp.float32)
    shares = present / jnp.maximum(present.sum(axis=1, keepdims=True), 1)
    sums = model.cross_entropy(
      x[:, :-1], tokens[:, 1:], shares * weights[:, None], axes=('batch', None)
    )
    total, _ = sums['loss']
    return {'lm_loss': (total, self.term_weight(batch, weights))}, self.weight * total
