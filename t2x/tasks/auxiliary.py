"""Objectives that a task learns beside its own."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.models import TextModel
from t2x.models.losses import Sums
from t2x.ranges import NonNegative
from t2x.tasks.base import check_causal


@runtime_checkable
class Auxiliary(Protocol):
  """A further loss on the hidden vectors of a task's batch."""

  def check_model(self, model: TextModel, length: int) -> None:
    """Raises UserError when the model cannot learn it from rows of `length` tokens."""

  def term_weight(
    self, batch: Mapping[str, jax.Array], weights: Float[Array, ' batch']
  ) -> Float[Array, '']:
    """Returns the weight of the loss term, before the forward pass.

    Args:
      batch: the whole batch.
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
    """Returns metrics, and the sum of the loss term with its coefficient."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelling:
  """GPT-1's joint objective: the task's loss + weight * the loss of each next token of the text
  (Radford et al. 2018, Improving Language Understanding by Generative Pre-Training, section 3.2;
  the loss is the mean over a text's tokens, then over texts). Reported as `lm_loss`.

  Attributes:
    weight: the paper's lambda.
  """

  weight: NonNegative = 0.5

  def check_model(self, model, length):
    """No block may see a later token."""
    check_causal(model, length, 'LanguageModelling')

  def term_weight(self, batch, weights):
    """The number of texts."""
    return weights.sum()

  def __call__(self, model, x, batch, weights):
    """`x` are the hidden vectors of `batch['tokens']`; padding has segment 0."""
    tokens, segments = batch['tokens'], batch['segments']
    present = (segments[:, 1:] != 0).astype(jnp.float32)
    shares = present / jnp.maximum(present.sum(axis=1, keepdims=True), 1)
    sums = model.cross_entropy(
      x[:, :-1], tokens[:, 1:], shares * weights[:, None], axes=('batch', None)
    )
    total, _ = sums['loss']
    return {'lm_loss': (total, self.term_weight(batch, weights))}, self.weight * total
