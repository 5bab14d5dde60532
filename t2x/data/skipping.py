"""Batches with skips, for example of batches at which the loss diverged."""

import dataclasses
from collections.abc import Sequence

from t2x.base.ranges import Natural
from t2x.data.batches import Batch
from t2x.data.prefetching import ByStep

__all__ = ['Skipping']


@dataclasses.dataclass
class Skipping:
  """`batches` by step, with `skips[i][1]` batches skipped at step `skips[i][0]`.

  Attributes:
    batches: batches to read.
    skips: (step, number of batches to skip from there), in the order in which they were added.
  """

  batches: ByStep
  skips: Sequence[tuple[Natural, Natural]] = ()

  def source_step(self, step: int) -> int:
    """Returns the index in `batches` of the batch at `step`."""
    # In reverse order: the step of a skip is counted with all earlier skips applied.
    for start, count in reversed(self.skips):
      step += count if step >= start else 0
    return step

  def __getitem__(self, step: int) -> Batch:
    return self.batches[self.source_step(step)]
