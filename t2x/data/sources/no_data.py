"""A source without examples, for a model that came with none."""

import dataclasses
from collections.abc import Sequence

from t2x.data.sources.base import Example
from t2x.errors import UserError

__all__ = ['NoData']


@dataclasses.dataclass(frozen=True)
class NoData:
  """What an imported model is trained on: nothing. It generates; it cannot be trained or evaluated."""

  def splits(self) -> tuple[str, ...]:
    """None."""
    return ()

  def load(self, split: str) -> Sequence[Example]:
    """Raises UserError: bind a source instead."""
    raise UserError('NoData has no examples: set the source of the task')

  def fingerprint(self) -> str:
    """Of nothing."""
    return 'no data'

  def describe(self) -> str:
    """One line for people."""
    return 'NoData()'
