"""Plans of examples with several texts, such as both orders of a pair or the choices of a question (GPT-1, Radford et
al. 2018, Improving Language Understanding by Generative Pre-Training, section 3.3)."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.data.labelled import LabelledPlan
from t2x.data.plans import Column, Plan, text_of

__all__ = ['Choice']


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralTexts(Plan):
  """Converts an example to a row with its encoded texts one after another, each padded to the same length.

  Attributes:
    plans: the plan of each text; labels are those of the first.
  """

  plans: tuple[LabelledPlan, ...]

  @property
  def columns(self):
    """Columns of the first plan, with those of tokens for all texts."""
    first = self.plans[0]
    columns, count = first.columns, len(self.plans)
    return columns | {
      name: Column(count * first.length, columns[name].dtype)
      for name in ('tokens', 'types', 'segments')
    }

  def encode(self, examples, tokenizer, counts):
    """Yields one row per example."""
    copies = itertools.tee(examples, len(self.plans))
    encoded = (
      plan.encode(copy, tokenizer, counts) for plan, copy in zip(self.plans, copies, strict=True)
    )
    for rows in zip(*encoded, strict=True):
      joined = {
        name: np.concatenate([row[name] for row in rows])
        for name in ('tokens', 'types', 'segments')
      }
      yield rows[0] | joined


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(LabelledPlan):
  """Converts a context and one of the choices of an example to a pair of texts with `label` and `weight` (1).

  Examples have the texts `choices` and the number of the right one, `answer`.

  Attributes:
    context: names of the text fields before the choice, which are joined by line breaks.
    number: number of the choice.
    num_choices: number of choices of an example.
  """

  context: tuple[str, ...]
  number: int
  num_choices: int

  @property
  def columns(self):
    """Adds the number of the right choice."""
    return super().columns | {'label': Column(1, np.int32), 'weight': Column(1, np.uint8)}

  def encode(self, examples, tokenizer, counts):
    """Yields one row per example."""
    for number, example in examples:
      answer = self._check(example, number)
      context = '\n'.join(text_of(example, field, number) for field in self.context)
      pair = {'context': context, 'choice': example['choices'][self.number]}
      row = self.encoded(pair, number, ('context', 'choice'), tokenizer, counts)
      yield row | {'label': answer, 'weight': 1}

  def _check(self, example: Mapping[str, Any], number: int) -> int:
    """Returns the number of the right choice; raises UserError for an example of another form."""
    choices, answer = example.get('choices'), example.get('answer')
    if not isinstance(choices, list | tuple) or len(choices) != self.num_choices:
      raise UserError(
        f"example {number} must have {self.num_choices} texts in 'choices', not {choices!r}: its fields are "
        f'{sorted(example)}'
      )
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
      raise UserError(
        f"example {number} has 'answer' = {answer!r}: must be the number of the right choice, from 0 to "
        f'{len(choices) - 1}'
      )
    return answer


def joined_plans(plans: Sequence[LabelledPlan]) -> Plan:
  """Returns the plan of an example with one text or several."""
  return plans[0] if len(plans) == 1 else SeveralTexts(plans=tuple(plans))
