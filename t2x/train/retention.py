"""Which checkpoints are kept, and the metrics that decide it."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from t2x.errors import UserError
from t2x.files import write_whole

Metrics = Mapping[str, float]

# Where a checkpoint has the metrics of its evaluation.
METRICS = Path('metrics', 'metrics')


class Retention:
  """The newest, the best, and every so many steps; a preservation policy of Orbax.

  Args:
    folder: of the checkpoints.
    keep_last: newest checkpoints kept.
    keep_best: best checkpoints kept, of those with metrics.
    keep_every: checkpoints of steps that are multiples of this are kept for good; 0: none.
    metric: the metric that decides.
    mode: whether it should be small or large.

  Attributes:
    metrics: metrics of the evaluated checkpoints by step, the same on every process.
  """

  def __init__(
    self,
    folder: Path,
    keep_last: int,
    keep_best: int,
    keep_every: int,
    metric: str,
    mode: Literal['min', 'max'],
  ):
    self.folder = folder
    self.keep_last, self.keep_best, self.keep_every = keep_last, keep_best, keep_every
    self.metric, self.mode = metric, mode
    self.metrics: dict[int, Metrics] = {}

  def check(self, metrics: Metrics) -> None:
    """Raises UserError unless the metric that decides is among them."""
    if self.metric not in metrics:
      raise UserError(
        f"the metric '{self.metric}', which chooses the best checkpoint, is none of "
        f'{", ".join(metrics)}'
      )

  def read(self, step: int) -> dict[str, float] | None:
    """The metrics in a checkpoint's folder; None: it has not been evaluated."""
    try:
      return json.loads((self.folder / str(step) / METRICS).read_bytes())
    except (OSError, ValueError):
      return None  # Not there, or damaged.

  def write(self, step: int) -> None:
    """Writes the metrics of a step into its checkpoint's folder."""
    path = self.folder / str(step) / METRICS
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(self.metrics[step], default=float).encode())

  def ranked(self, metrics: Mapping[int, Metrics | None]) -> list[int]:
    """The steps that have the metric, best first, newer first among equals."""
    having = {step: one for step, one in metrics.items() if one and self.metric in one}
    return sorted(having, key=lambda step: (self._badness(having[step]), -step))

  def _badness(self, metrics: Metrics) -> float:
    """The metric, turned so that smaller is better and not a number is worst."""
    value = metrics[self.metric]
    value = -value if self.mode == 'max' else value
    return math.inf if math.isnan(value) else value

  def kept(self, steps: Sequence[int]) -> set[int]:
    """Those of all saved steps, ascending, that are not to be removed."""
    best = self.ranked({step: self.metrics.get(step) for step in steps})[: self.keep_best]
    every = [step for step in steps if self.keep_every and step % self.keep_every == 0]
    return {*steps[-self.keep_last :], *best, *every}

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
    """`kept`, as Orbax asks for it."""
    kept = self.kept([checkpoint.step for checkpoint in checkpoints])
    return [checkpoint.step in kept for checkpoint in checkpoints]
