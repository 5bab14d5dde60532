"""Lists of another source's examples."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from t2x.base.errors import UserError
from t2x.base.ranges import Count, NonEmpty, Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import BulkExamples, Example, Source, read_at

__all__ = ['Lists']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lists(Source):
  """Lists of consecutive examples of `source` as one example, for texts of several lengths.

  No example is in two lists.

  Attributes:
    source: source of the examples.
    counts: numbers of examples in a list, each in turn.
    fields: the fields to join; others are left out.
    separator: the text between two items.
  """

  source: Source
  counts: Annotated[Sequence[Count], NonEmpty]
  fields: Annotated[Sequence[Text], NonEmpty] = ('source', 'target')
  separator: str = '; '

  def splits(self) -> tuple[str, ...]:
    return self.source.splits()

  def load(self, split: str) -> Sequence[Example]:
    """Returns the lists of a split; examples that do not fill all `counts` are left out."""
    return _Lists(self, self.source.load(split))

  def fingerprint(self) -> str:
    """Identifies the source and the settings."""
    settings = [[*self.counts], [*self.fields], self.separator]
    return fingerprint('Lists', settings, self.source.fingerprint())


class _Lists(BulkExamples):
  def __init__(self, lists: Lists, examples: Sequence[Example]):
    self.lists, self.examples = lists, examples

  def __len__(self) -> int:
    counts = self.lists.counts
    return len(self.examples) // sum(counts) * len(counts)

  def read(self, indices):
    return map(self._list, indices)

  def _list(self, index: int) -> Example:
    counts = self.lists.counts
    turn, place = divmod(index, len(counts))
    start = turn * sum(counts) + sum(counts[:place])
    items = [*read_at(self.examples, range(start, start + counts[place]))]
    for field in self.lists.fields:
      if not isinstance(items[0].get(field), str):
        raise UserError(
          f"Lists.fields: the examples of {self.lists.source.describe()} have no text '{field}': they have "
          f'{", ".join(items[0])}'
        )
    return {
      field: self.lists.separator.join(item[field] for item in items) for field in self.lists.fields
    }
