"""What a source of raw examples is."""

import abc
from collections.abc import Sequence
from typing import Any

__all__ = ['Example', 'Source']

# `text`, or `source` and `target`: str; or `image`: uint8 [height, width, channels] and `label`: int.
Example = dict[str, Any]


class Source(abc.ABC):
  """Raw examples by split. Subclasses are frozen dataclasses: equal settings, equal sources."""

  @abc.abstractmethod
  def splits(self) -> tuple[str, ...]:
    """Names of the splits."""

  @abc.abstractmethod
  def load(self, split: str) -> Sequence[Example]:
    """A split's examples, read at random."""

  @abc.abstractmethod
  def fingerprint(self) -> str:
    """Changes when the settings or the content do."""
