"""Base class of tasks over labelled texts, with one example per row and a classification head."""

import abc
import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Size
from t2x.parallel.placed import runs_model
from t2x.tasks.base import Task
from t2x.tasks.marks import MarkRule
from t2x.tasks.prediction import on_devices
from t2x.tasks.text import TextTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledTask(TextTask):
  """A task that predicts classes from the hidden vectors of a text.

  Attributes:
    length: tokens per row, including special tokens.
    marks: rules by the names of the marks that they set, as in `CausalLM`.
  """

  length: Size
  marks: Mapping[str, MarkRule] = dataclasses.field(default_factory=dict)

  answers_prompts: ClassVar[bool] = True

  @property
  @abc.abstractmethod
  def num_classes(self) -> int:
    """Number of logits of the head."""

  def check_model(self, model):
    """Also raises UserError if `pieces` is set or the head has another number of classes."""
    super().check_model(model)
    if self.pieces is not None:
      raise UserError(
        f'{type(self).__name__}.pieces is not supported, because labels refer to the tokens of cached '
        'rows: leave it out'
      )
    if model.spec.num_classes != self.num_classes:
      raise UserError(
        f'the model has {model.spec.num_classes} classes, but {type(self).__name__} needs '
        f'{self.num_classes}: bind @{self.head} as the head, with num_classes = {self.num_classes}'
      )

  def summarise(self, means, info=None):
    """Returns the metrics without perplexity, which is meaningless for classes."""
    return Task.summarise(self, means, info)

  def run_on_examples(
    self,
    function: Callable[..., Any],
    model: Any,
    examples: Sequence[Mapping[str, Any]],
  ) -> tuple[list[dict[str, Any]], Any]:
    """Returns the rows of some examples, and `function(model, batch)` for the batch of all these rows."""
    rows = list(self.plan.rows(examples, self.fitted, collections.Counter()))
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return rows, on_devices(jax.jit(runs_model(function)), model, batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTask(LabelledTask):
  """A task that predicts one of the `labels`.

  Attributes:
    labels: names of the classes.
  """

  labels: Annotated[Sequence[str], NonEmpty]

  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'

  @property
  def class_names(self):
    return self.labels

  @property
  def num_classes(self):
    return len(self.labels)
