"""A part of another source's examples."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated

from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example, Examples, Source, label_values
from t2x.errors import UserError
from t2x.ranges import Count, NonEmpty, Text


def spread(count: int, size: int) -> list[int]:
  """`count` of the indices below `size`, as far from each other as can be, from 0 on."""
  return [i * size // count for i in range(count)]


class Spread(Examples):
  """`size` examples at the indices of `spread`."""

  def __init__(self, examples: Sequence[Example], size: int):
    self.examples, self.size = examples, size

  def __len__(self) -> int:
    return self.size

  def __getitem__(self, index):
    """The example at `index`."""
    if not -self.size <= index < self.size:
      raise IndexError(f'example {index} of {self.size}')
    return self.examples[index % self.size * len(self.examples) // self.size]

  def label_values(self):
    """Those of the whole source, of which some may be missing here."""
    return label_values(self.examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(Source):
  """Some of the examples of `source`, spread evenly over each split, whatever its order is.

  A part a whole number of times smaller than another is a part of that one.

  Attributes:
    source: has the examples.
    examples: how many of them by split; a split that is not named is whole.
  """

  source: Source
  examples: Annotated[Mapping[Text, Count], NonEmpty]

  def __post_init__(self):
    for split in self.examples:
      if split not in self.source.splits():
        raise UserError(
          f"Part.examples = {dict(self.examples)}: '{split}' must be one of {self.source.splits()}"
        )

  def splits(self) -> tuple[str, ...]:
    """Those of the source."""
    return self.source.splits()

  def load(self, split: str) -> Sequence[Example]:
    """Some of the source's split.

    Raises:
      UserError: it has fewer examples.
    """
    examples = self.source.load(split)
    count = self.examples.get(split, len(examples))
    if count > len(examples):
      raise UserError(
        f"Part.examples['{split}'] = {count}: {self.source.describe()} has {len(examples)}"
      )
    return Spread(examples, count)

  def fingerprint(self) -> str:
    """Of the source and the numbers."""
    return fingerprint('Part', self.source.fingerprint(), sorted(self.examples.items()))
