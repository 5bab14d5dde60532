"""Sources that rewrite another source's examples."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import BulkExamples, Example, Source, label_values, read_at

__all__ = ['Joined', 'Prefixed']


class _Rewritten(BulkExamples):
  """Examples that are rewritten when they are read."""

  def __init__(self, source: 'RewritingSource', examples: Sequence[Example]):
    self.source, self.examples = source, examples

  def __len__(self) -> int:
    return len(self.examples)

  def read(self, indices):
    return map(self.source.rewrite, read_at(self.examples, indices))

  def label_values(self):
    values = label_values(self.examples)
    return None if values is None else set(map(self.source.rewrite_label, values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewritingSource(Source):
  """The examples of `source`, rewritten.

  Attributes:
    source: source of the examples.
  """

  source: Source

  @abc.abstractmethod
  def rewrite(self, example: Example) -> Example:
    """Returns the example to use in place of one of the source.

    Raises:
      UserError: the example lacks a field.
    """

  def rewrite_label(self, label: Any) -> Any:
    """Returns the label to use in place of one of the source."""
    return label

  def splits(self) -> tuple[str, ...]:
    return self.source.splits()

  def load(self, split: str) -> Sequence[Example]:
    return _Rewritten(self, self.source.load(split))

  def fingerprint(self) -> str:
    """Identifies the source and the settings."""
    settings = [
      getattr(self, field.name) for field in dataclasses.fields(self) if field.name != 'source'
    ]
    return fingerprint(type(self).__name__, settings, self.source.fingerprint())

  def _text(self, example: Example, field: str) -> str:
    text = example.get(field)
    if not isinstance(text, str):
      raise UserError(
        f"{type(self).__name__}: the examples of {self.source.describe()} have no text '{field}': they have "
        f'{", ".join(example)}'
      )
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefixed(RewritingSource):
  """Examples with a prefix that names the task, as in T5 ('translate English to German: ').

  Attributes:
    prefix: the text before the field, with its separator.
    field: the field to change.
  """

  prefix: Text
  field: Text = 'source'

  def rewrite(self, example):
    """Returns the example with the prefix."""
    return example | {self.field: self.prefix + self._text(example, self.field)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joined(RewritingSource):
  """Examples whose `text` is several fields, for example a sentence and its translation (translation language
  modelling, https://arxiv.org/abs/1901.07291).

  Attributes:
    fields: the fields, in order.
    separator: the text between two fields.
  """

  fields: Annotated[Sequence[Text], NonEmpty] = ('source', 'target')
  separator: str = '\n'

  def rewrite(self, example):
    """Returns `text` only."""
    return {'text': self.separator.join(self._text(example, field) for field in self.fields)}
