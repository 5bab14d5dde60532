"""Scores of captions that have several references, and of their facts."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Text
from t2x.tasks.base import Task
from t2x.tasks.captions import Captions
from t2x.tasks.translation_scores import Translations

__all__ = ['CaptionScores']


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionScores(Translations):
  """As `Translations`, with several references per example, one of which an exact match equals; and shares of captions
  that are right by rules.

  Attributes:
    references: field of the examples with the references, a sequence of texts.
    rules: name of the metric -> function of a caption and its example that returns whether the caption is right, such
      as `scene_is_right`.
  """

  references: Text = 'captions'
  rules: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = dataclasses.field(
    default_factory=dict
  )

  kinds: ClassVar[tuple[type[Task], ...]] = (Captions,)
  names = ''

  def _references(self, pair):
    references = pair.get(self.references)
    if not isinstance(references, list | tuple) or not references:
      raise UserError(
        f"CaptionScores.references = '{self.references}': the examples have no list of texts of this name, but "
        f'{", ".join(pair)}'
      )
    return references

  def _score(self, pairs, outputs):
    """Returns the metrics, with the share of captions that each rule finds right."""
    evaluation = super()._score(pairs, outputs)
    right = {
      name: np.array([rule(o, pair) for o, pair in zip(outputs, pairs, strict=True)], float)
      for name, rule in self.rules.items()
    }
    if taken := right.keys() & evaluation.metrics.keys():
      raise UserError(f"CaptionScores.rules['{min(taken)}']: is a metric; use another name")
    shares = {name: float(values.mean()) for name, values in right.items()}
    metrics, examples = {**evaluation.metrics, **shares}, {**evaluation.examples, **right}
    return dataclasses.replace(evaluation, metrics=metrics, examples=examples)
