"""What tasks over labelled texts share: rows with one example each, and a head of their own."""

import abc
import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from flax import nnx

from t2x.data import LabelledPlan, token_rows
from t2x.decode.generate import spread_over
from t2x.errors import UserError
from t2x.ranges import Size
from t2x.tasks.base import Task, TextTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledTask(TextTask):
  """A task that predicts classes from the hidden vectors of a text.

  Attributes:
    length: tokens a row, special ones included.
  """

  length: Size

  answers_prompts: ClassVar[bool] = True

  @property
  @abc.abstractmethod
  def num_classes(self) -> int:
    """Logits that the head gives."""

  @property
  @abc.abstractmethod
  def plan(self) -> LabelledPlan:
    """How examples become rows."""

  def rows(self, split):
    """Rows from the cache."""
    self.check_split(split)
    return token_rows(self.source, split, self.fitted, self.plan)

  def check_model(self, model):
    """The head needs a logit for each class, beside what every text task wants."""
    super().check_model(model)
    if self.pieces is not None:
      raise UserError(
        f'{type(self).__name__}.pieces: labels stand at the pieces that rows are cached with, so no '
        'others are drawn: leave it out'
      )
    if model.spec.num_classes != self.num_classes:
      raise UserError(
        f'the model has {model.spec.num_classes} classes, {type(self).__name__} {self.num_classes}: '
        f'bind @{self.head} as the head, its num_classes = {self.num_classes}'
      )

  def summarise(self, means, info=None):
    """The quotients alone: perplexity says nothing here."""
    return Task.summarise(self, means, info)

  def told(
    self,
    function: Callable[..., Any],
    model: nnx.Module,
    examples: Sequence[Mapping[str, Any]],
  ) -> tuple[list[dict[str, Any]], Any]:
    """The rows of some examples, and what `function(model, batch)` makes of all of them at once."""
    rows = list(self.plan.rows(examples, self.fitted, collections.Counter()))
    spread, gathered = spread_over(model, len(rows))
    batch = {name: spread(np.stack([row[name] for row in rows])) for name in rows[0]}
    return rows, jax.device_get(gathered(jax.jit(function)(model, batch)))
