"""Rows with a text of one language, or with a text and its translation (XLM, https://arxiv.org/abs/1901.07291)."""

import dataclasses

import numpy as np

from t2x.base.errors import UserError
from t2x.data.labelled import LabelledPlan
from t2x.data.plans import Column

__all__ = ['ParallelTexts']


@dataclasses.dataclass(frozen=True)
class ParallelTexts(LabelledPlan):
  """Converts one or two text fields to a row with `tokens`, `types`, `positions` and `segments` (1, or 0 for padding).

  The type of a token is its language, and positions start anew in the second text. Texts that do not fit are truncated,
  the longer first.

  Attributes:
    languages: field -> number of its language, of one or two text fields.
  """

  length: int
  languages: dict[str, int]

  def __post_init__(self):
    super().__post_init__()
    if len(self.languages) not in (1, 2):
      raise UserError(
        f'languages = {self.languages}: must be the languages of one or two text fields'
      )

  @property
  def columns(self):
    """Adds positions and wider types."""
    return super().columns | {
      'types': Column(self.length, np.uint16),
      'positions': Column(self.length, np.int32),
    }

  def encode(self, examples, tokenizer, counts):
    """Yields one row per example."""
    fields, numbers = list(self.languages), np.array([*self.languages.values()])
    for number, example in examples:
      row = self.encoded(example, number, fields, tokenizer, counts)
      is_second, is_token = row['types'] == 1, row['segments'] != 0
      start = int(np.argmax(is_second)) if is_second.any() else 0
      index = np.arange(self.length)
      yield row | {
        'types': numbers[row['types']] * is_token,
        'positions': np.where(is_second, index - start, index) * is_token,
      }
