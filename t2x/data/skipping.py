"""Batches with some left out, so that a run can go around those that broke it."""

import dataclasses
from collections.abc import Sequence

from t2x.data.batches import Batch
from t2x.data.prefetching import ByStep
from t2x.ranges import Natural


@dataclasses.dataclass
class Skipping:
  """`batches` by step, but from step `skips[i][0]` on as if `skips[i][1]` more had gone by.

  Attributes:
    batches: what is read.
    skips: (step, how many batches are left out from there on), in the order they were decided.
  """

  batches: ByStep
  skips: Sequence[tuple[Natural, Natural]] = ()

  def source_step(self, step: int) -> int:
    """The step that the batch of `step` has in `batches`."""
    # The last decided comes first: it counted in steps of the run as all others had left it.
    for start, count in reversed(self.skips):
      step += count if step >= start else 0
    return step

  def __getitem__(self, step: int) -> Batch:
    return self.batches[self.source_step(step)]
