"""Subsets of another source's examples."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Count, NonEmpty, Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import (
  BulkExamples,
  Example,
  Source,
  example_names,
  label_values,
  read_at,
)

__all__ = ['Part']


def spread(count: int, size: int) -> list[int]:
  """Returns `count` evenly spaced indices below `size`, beginning with 0."""
  return [i * size // count for i in range(count)]


class Spread(BulkExamples):
  """The `size` examples at the indices of `spread`."""

  def __init__(self, examples: Sequence[Example], size: int):
    self.examples, self.size = examples, size

  def __len__(self) -> int:
    return self.size

  def read(self, indices):
    originals = [i * len(self.examples) // self.size for i in indices]
    return read_at(self.examples, originals)

  def names(self):
    names = example_names(self.examples)
    return [names[i] for i in spread(self.size, len(self.examples))] if names else []

  def label_values(self):
    """Returns the label values of the entire source; the subset may lack some."""
    return label_values(self.examples)


class Selected(BulkExamples):
  """The examples at the ascending indices in a file of int64, which is memory-mapped."""

  def __init__(self, examples: Sequence[Example], path: Path):
    self.examples, self.path = examples, path

  def __reduce__(self):
    return type(self), (self.examples, self.path)

  @functools.cached_property
  def indices(self) -> np.ndarray:
    """The indices, ascending."""
    return np.asarray(np.memmap(self.path, '<i8', 'r'))

  def __len__(self) -> int:
    return len(self.indices)

  def read(self, indices):
    return read_at(self.examples, self.indices[list(indices)].tolist())

  def names(self):
    names = example_names(self.examples)
    return [names[i] for i in self.indices] if names else []

  def label_values(self):
    """Returns the label values of all examples; the selection may lack some."""
    return label_values(self.examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(Source):
  """A subset of the examples of `source`, evenly spaced in each split.

  A subset contains every smaller subset whose size divides its own.

  Attributes:
    source: source of the examples.
    examples: split -> number of examples; other splits are complete.
  """

  source: Source
  examples: Annotated[Mapping[Text, Count], NonEmpty]

  def __post_init__(self):
    for split in self.examples:
      if split not in self.source.splits():
        raise UserError(
          f"Part.examples = {dict(self.examples)}: '{split}' must be one of "
          f'{", ".join(self.source.splits())}'
        )

  def splits(self) -> tuple[str, ...]:
    return self.source.splits()

  def load(self, split: str) -> Sequence[Example]:
    """Returns the subset of a split.

    Raises:
      UserError: the split has too few examples.
    """
    examples = self.source.load(split)
    count = self.examples.get(split, len(examples))
    if count > len(examples):
      raise UserError(
        f"Part.examples['{split}'] = {count}: {self.source.describe()} has {len(examples)} examples"
      )
    return Spread(examples, count)

  def fingerprint(self) -> str:
    """Identifies the source and the numbers of examples."""
    return fingerprint('Part', self.source.fingerprint(), sorted(self.examples.items()))
