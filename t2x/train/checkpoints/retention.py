"""Retention of checkpoints: which ones are kept, and the metrics that rank them."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from t2x.base.errors import UserError
from t2x.base.files import write_atomically

Metrics = Mapping[str, float]

# File of the evaluation's metrics in the folder of a checkpoint.
METRICS = Path('metrics', 'metrics')


@dataclasses.dataclass(eq=False)
class Retention:
  """Preservation policy of Orbax: keeps the newest, the best, and every n-th step's checkpoints.

  Attributes:
    folder: folder of the checkpoints.
    keep_last: number of newest checkpoints to keep.
    keep_best: number of best checkpoints to keep, among those with metrics.
    keep_every: checkpoints of steps that are multiples of this are never removed; 0 disables it.
    best_metric: name of the metric that ranks checkpoints.
    best_mode: whether the best value of the metric is its minimum or its maximum.
    metrics: metrics of the evaluated checkpoints by step, equal on every process.
  """

  folder: Path
  keep_last: int = 2
  keep_best: int = 1
  keep_every: int = 0
  best_metric: str = 'loss'
  best_mode: Literal['min', 'max'] = 'min'
  metrics: dict[int, Metrics] = dataclasses.field(default_factory=dict)

  def check(self, metrics: Metrics) -> None:
    """Raises UserError if the metric that ranks checkpoints is missing."""
    if self.best_metric not in metrics:
      raise UserError(
        f"the metric '{self.best_metric}', which ranks checkpoints, is missing; the evaluation has "
        f'{", ".join(metrics)}: set best_metric of the task to one of them'
      )

  def read(self, step: int) -> dict[str, float] | None:
    """Reads the metrics in a checkpoint's folder; None if it was not evaluated."""
    try:
      return json.loads((self.folder / str(step) / METRICS).read_bytes())
    except (OSError, ValueError):
      return None  # Missing or damaged.

  def write(self, step: int) -> None:
    """Writes the metrics of a step into its checkpoint's folder."""
    path = self.folder / str(step) / METRICS
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, json.dumps(self.metrics[step], default=float).encode())

  def ranked(self, metrics: Mapping[int, Metrics | None]) -> list[int]:
    """Returns the steps that have the metric, best first, newer first among equals."""
    ranked = {
      step: values for step, values in metrics.items() if values and self.best_metric in values
    }
    return sorted(ranked, key=lambda step: (self._badness(ranked[step]), -step))

  def _badness(self, metrics: Metrics) -> float:
    """Returns the metric with its sign changed if larger is better; infinity for NaN."""
    value = metrics[self.best_metric]
    value = -value if self.best_mode == 'max' else value
    return math.inf if math.isnan(value) else value

  def retained(self, steps: Sequence[int]) -> set[int]:
    """Returns the steps to keep, given all saved steps in ascending order."""
    best = self.ranked({step: self.metrics.get(step) for step in steps})[: self.keep_best]
    every = [step for step in steps if self.keep_every and step % self.keep_every == 0]
    return {*steps[-self.keep_last :], *best, *every}

  def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
    """Implements the interface of Orbax with `retained`."""
    retained = self.retained([checkpoint.step for checkpoint in checkpoints])
    return [checkpoint.step in retained for checkpoint in checkpoints]
