"""Sources that draw wrong answers from further examples of a source: choices of a question, and mismatched pairs."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Range, Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import BulkExamples, Example, Source, read_at

__all__ = ['DrawnChoices', 'DrawnPairs']

SEED = 20180611


class _Drawn(BulkExamples):
  """Examples with the fields of other examples of the split, which depend only on the number of the example."""

  def __init__(self, source: '_DrawingSource', examples: Sequence[Example]):
    self.source, self.examples = source, examples

  def __len__(self) -> int:
    return len(self.examples)

  def read(self, indices):
    for index, example in zip(indices, read_at(self.examples, indices), strict=True):
      yield self.source.drawn(example, self.examples, np.random.default_rng((SEED, index)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DrawingSource(Source):
  """The examples of `source` with texts of other examples of the split.

  Attributes:
    source: source of the examples.
    field: the text field that is drawn.
  """

  source: Source
  field: Text = 'target'

  @abc.abstractmethod
  def drawn(
    self, example: Example, examples: Sequence[Example], rng: np.random.Generator
  ) -> Example:
    """Returns the example to use in place of one of the source."""

  def splits(self) -> tuple[str, ...]:
    return self.source.splits()

  def load(self, split):
    return _Drawn(self, self.source.load(split))

  def fingerprint(self) -> str:
    """Identifies the source and the settings."""
    settings = [
      getattr(self, field.name) for field in dataclasses.fields(self) if field.name != 'source'
    ]
    return fingerprint(type(self).__name__, SEED, settings, self.source.fingerprint())

  def others(
    self, example: Example, examples: Sequence[Example], count: int, rng: np.random.Generator
  ) -> list[str]:
    """Returns `count` different texts of other examples, all different from the text of the example.

    Raises:
      UserError: no further text is found in 100 draws.
    """
    texts = [example[self.field]]
    for index in rng.integers(len(examples), size=100).tolist():
      if len(texts) > count:
        break
      text = examples[index][self.field]
      texts += [] if text in texts else [text]
    if len(texts) <= count:
      raise UserError(
        f"{type(self).__name__}: the examples of {self.source.describe()} have too few different texts '{self.field}'"
      )
    return texts[1:]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnChoices(_DrawingSource):
  """Examples with `choices`, the text of `field` and those of other examples in random order, and `answer`, its number.

  Attributes:
    num_choices: number of choices.
  """

  num_choices: Annotated[int, Range('2 <= x')] = 4

  def drawn(self, example, examples, rng):
    others = self.others(example, examples, self.num_choices - 1, rng)
    answer = int(rng.integers(self.num_choices))
    choices = [*others[:answer], example[self.field], *others[answer:]]
    rest = {name: value for name, value in example.items() if name != self.field}
    return rest | {'choices': choices, 'answer': answer}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnPairs(_DrawingSource):
  """Examples of which a random half has the text of another example in `field`; `label` is 'same' or 'other'."""

  def drawn(self, example, examples, rng):
    if rng.random() < 0.5:
      return example | {'label': 'same'}
    [text] = self.others(example, examples, 1, rng)
    return example | {self.field: text, 'label': 'other'}
