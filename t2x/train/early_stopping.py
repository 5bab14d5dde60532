"""Early stopping: `Trainer.patience` counts the evaluations since the best one."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

# Metric of an evaluation of a run with `Trainer.patience`: the number of evaluations since the best one.
SINCE_BEST = 'evaluations_since_best'


@dataclasses.dataclass
class EarlyStopping:
  """State of early stopping, a function of the evaluations so far.

  A checkpoint holds the state before the evaluation of its step (`state`), and the metrics of that evaluation
  are attached to the checkpoint; the two determine the state after it (`restore`). A resumed run therefore stops
  at the same evaluation as an uninterrupted one.

  Args:
    patience: number of consecutive evaluations without improvement after which training stops; None: never.
    metric: name of the metric.
    mode: whether a smaller or a larger value is better.
    best: best value so far; None before the first evaluation with a finite value.
    since_best: number of evaluations since this value.
  """

  patience: int | None
  metric: str
  mode: Literal['min', 'max']
  best: float | None = None
  since_best: int = 0

  @property
  def stops(self) -> bool:
    """Whether training stops at the evaluation that was added last."""
    return self.patience is not None and self.since_best >= self.patience

  def state(self) -> dict[str, Any]:
    """Returns what a checkpoint holds."""
    return {} if self.patience is None else {'best': self.best, 'since_best': self.since_best}

  def restore(self, saved: Mapping[str, Any], metrics: Mapping[str, float] | None) -> None:
    """Continues from a checkpoint.

    Args:
      saved: `state` at the checkpoint; {} without one.
      metrics: metrics of the evaluation at the step of the checkpoint, as `add` returned them; None if it has not
        been evaluated.
    """
    self.best, self.since_best = saved.get('best'), saved.get('since_best', 0)
    if metrics is not None and SINCE_BEST in metrics:
      self.since_best = int(metrics[SINCE_BEST])
      # The evaluation that stops a run is of another number of rows, and the last of the run.
      if not self.since_best and not self.stops:
        self.best = metrics[self.metric]

  def add(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Adds an evaluation. Returns the metric `evaluations_since_best`; {} without `patience`."""
    if self.patience is None:
      return {}
    value = metrics.get(self.metric, math.nan)
    better = self.best is None or (value < self.best if self.mode == 'min' else value > self.best)
    if better and math.isfinite(value):
      self.best, self.since_best = value, 0
    else:
      self.since_best += 1
    return {SINCE_BEST: self.since_best}
