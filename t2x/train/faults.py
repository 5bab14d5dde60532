"""What is done about a step whose loss or gradient is not finite, about a loss that leaps, and about an
evaluation that was cut off.

A batch can break a run: by a bug, bad data, or an unlucky rate. PaLM went around loss spikes by
restarting from a checkpoint before them and leaving out the batches that followed (Chowdhery et al.
2022, https://arxiv.org/abs/2204.02311, section 5.1).
"""

import abc
import collections
import contextlib
import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from t2x.data import Batches, Skipping
from t2x.errors import UserError
from t2x.files import write_whole
from t2x.models.losses import Sums
from t2x.ranges import Count, Positive

if TYPE_CHECKING:
  from t2x.train.run import TrainingRun

log = logging.getLogger('t2x')


@dataclasses.dataclass(frozen=True)
class OnNonFinite(abc.ABC):
  """What happens to a step whose loss or gradient is not finite."""

  def endures(self, in_a_row: int) -> bool:
    """Whether the run goes on after so many such steps in a row."""
    return False

  @abc.abstractmethod
  def select(self, finite: Any, new: Any, old: Any) -> Any:
    """On the device: the state (or a part of it) to go on with, given the one after the step and
    the one before."""

  def count(self, finite: Any, sums: Sums) -> Sums:
    """On the device: the step's part in the means of its log interval."""
    return sums


@dataclasses.dataclass(frozen=True)
class Stop(OnNonFinite):
  """Ends the run, and says which step, which terms of the loss, whose gradients."""

  def select(self, finite, new, old):
    """What came out of the step: it is never saved."""
    return new


@dataclasses.dataclass(frozen=True)
class Skip(OnNonFinite):
  """Leaves the parameters as they were, counts the step in the metric `skipped`, and goes on; ends
  the run after more than `limit` such steps in a row."""

  limit: Count = 10

  def endures(self, in_a_row):
    """As long as there are no more than `limit`."""
    return in_a_row <= self.limit

  def select(self, finite, new, old):
    """The old one where the step is not finite."""
    return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

  def count(self, finite, sums):
    """A step that is left out weighs nothing; `skipped` is the part of such steps."""
    kept = jax.tree.map(lambda a: jnp.where(finite, a, 0.0), sums)
    return kept | {'skipped': (1.0 - finite, jnp.ones(()))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollback:
  """Takes a loss that stays far above those before it for a spike, goes back to the last
  checkpoint before it, and leaves its batches out.

  Attributes:
    window: losses that a new one is compared with.
    threshold: how far above their median, in robust standard deviations (1.4826 times the median
      absolute deviation), a loss leaps.
    patience: leaps in a row that make a spike.
    limit: times that a run goes back, in all.
  """

  window: Count = 200
  threshold: Positive = 8.0
  patience: Count = 3
  limit: Count = 5


class Fault(UserError):
  """A step whose loss or gradient is not finite.

  Attributes:
    step: the first such step.
    about: what is known of it, for JSON.
  """

  def __init__(self, message: str, step: int, about: Mapping[str, Any]):
    super().__init__(message, exit_code=1)
    self.step, self.about = step, dict(about)


class Spike(Exception):
  """The loss leapt at steps `first` to `last`."""

  def __init__(self, first: int, last: int):
    super().__init__(f'the loss leapt at steps {first} to {last}')
    self.first, self.last = first, last


class Faults:
  """Looks at every step once, in order, some steps after it was run.

  Args:
    names: of the parameters, in the order of the gradient norms.
    nonfinite: what is endured.
    rollback: what counts as a spike; None: nothing does.
  """

  def __init__(self, names: Sequence[str], nonfinite: OnNonFinite, rollback: Rollback | None):
    self.names, self.nonfinite, self.rollback = list(names), nonfinite, rollback
    self.in_a_row = 0
    self.leaps = 0
    window = rollback.window if rollback else 1
    self.losses: collections.deque[float] = collections.deque(maxlen=window)

  def state(self) -> dict[str, Any]:
    """What a checkpoint keeps, for `restore`."""
    return {'in_a_row': self.in_a_row, 'leaps': self.leaps, 'losses': list(self.losses)}

  def restore(self, saved: Mapping[str, Any]) -> None:
    """Goes on from what `state` gave."""
    self.in_a_row, self.leaps = saved.get('in_a_row', 0), saved.get('leaps', 0)
    self.losses.extend(saved.get('losses', ()))

  def look(self, step: int, finite: bool, sums: Mapping[str, Any], norms: Any) -> None:
    """Takes the outcome of a step, on the host.

    Args:
      step: its number.
      finite: whether the loss and the gradient are finite, as the train step decided.
      sums: (sum, weight) of the loss and the metrics.
      norms: the gradient norm of each parameter.

    Raises:
      Fault: more steps in a row than are endured were not finite.
      Spike: the loss leapt, and stayed.
    """
    if not finite:
      self.in_a_row += 1
      if not self.nonfinite.endures(self.in_a_row):
        raise self._fault(step, sums, np.asarray(norms))
      return
    self.in_a_row = 0
    loss = _mean(sums['loss'])
    # A batch of weight 0 has no loss.
    if self.rollback is not None and not math.isnan(loss):
      self._look_for_a_spike(step, loss, self.rollback)

  def _look_for_a_spike(self, step: int, loss: float, rollback: Rollback) -> None:
    if len(self.losses) >= min(rollback.window, 20):
      known = np.array(self.losses)
      median = np.median(known)
      deviation = 1.4826 * np.median(np.abs(known - median))
      if loss > median + rollback.threshold * max(deviation, 1e-3 * abs(median)):
        self.leaps += 1
        if self.leaps >= rollback.patience:
          raise Spike(step - self.leaps + 1, step)
        return
    self.leaps = 0
    self.losses.append(loss)

  def _fault(self, step: int, sums: Mapping[str, Any], norms: np.ndarray) -> Fault:
    first = step - self.in_a_row + 1
    terms = {name: _mean(pair) for name, pair in sums.items()}
    bad = [name for name, norm in zip(self.names, norms, strict=True) if not math.isfinite(norm)]
    told = ', '.join(f'{name} {value:.4g}' for name, value in terms.items())
    whose = ', '.join(bad[:5]) + (f' and {len(bad) - 5} more' if len(bad) > 5 else '')
    row = f', the last of {self.in_a_row} in a row,' if self.in_a_row > 1 else ''
    about = {'step': step, 'first_step': first, 'terms': {n: repr(v) for n, v in terms.items()}}
    return Fault(
      f'step {step}{row} is not finite: {told}; gradients that are not: {whose or "none"}',
      first,
      about | {'gradients': bad},
    )


def _mean(pair: Any) -> float:
  total, weight = map(float, pair)
  return total / weight if weight else math.nan


class Diverged(UserError):
  """A loss or gradient that was not finite, or leapt too often, ended the run. `reason` is brief."""

  def __init__(self, reason: str, advice: str):
    super().__init__(f'{reason}; {advice}', exit_code=1)
    self.reason = reason.partition(';')[0]


def skips_of(run: 'TrainingRun') -> list[tuple[int, int]]:
  """(step, batches left out from there on) of each time that the run went back."""
  path = run.folder / 'skips.json'
  return [(step, count) for step, count in json.loads(path.read_text())] if path.exists() else []


def go_back(run: 'TrainingRun', spike: Spike, skips: list[tuple[int, int]]) -> None:
  """Forgets what came after the last checkpoint before the spike, and leaves its batches out."""
  rollback = run.trainer.rollback
  if rollback is None or len(skips) >= rollback.limit:
    raise Diverged(
      f'{spike}, and the run has gone back {len(skips)} times', 'try a lower learning rate'
    ) from spike
  run.checkpoints.wait()  # The last one may still be on its way to the disk.
  good = max((step for step in run.checkpoints.steps() if step < spike.first), default=0)
  run.checkpoints.forget_after(good)
  run.processes.barrier()
  skips = [*skips, (spike.first - 1, spike.last - spike.first + 1)]
  if run.processes.first:
    write_whole(run.folder / 'skips.json', json.dumps(skips).encode())
  run.processes.barrier()
  log.warning('%s: going back to step %d and leaving their batches out', spike, good)


def kept_for_replay(
  run: 'TrainingRun', batches: Batches, fault: Fault, skips: list[tuple[int, int]]
) -> Diverged:
  """Writes down which rows the faulty step read. Returns the error to raise."""
  source_step = Skipping(batches, skips).source_step(fault.step - 1)
  epochs, rows = batches.indices(source_step)
  path = run.folder / f'fault-{fault.step}.json'
  if run.processes.first:
    about = {'source_step': source_step, 'epochs': epochs.tolist(), 'rows': rows.tolist()}
    path.write_text(json.dumps(fault.about | about, indent=2) + '\n')
  with contextlib.suppress(UserError):
    run.checkpoints.wait()
  last = run.checkpoints.latest_step()
  good = 'there is no checkpoint yet' if last is None else f'the checkpoint of step {last} is good'
  return Diverged(
    str(fault),
    f'{good}; its batch is noted in {path}. Try a lower learning rate, a longer warm-up, '
    'or Trainer.nonfinite = @Skip()',
  )


def forget_evaluation(run: 'TrainingRun', step: int) -> None:
  """Removes the lines of an evaluation from the run's files, where it is going to be repeated."""
  for name in ('metrics', 'samples', 'timing') if run.processes.first else ():
    path = run.folder / f'{name}.jsonl'
    if path.exists():
      with path.open('rb') as file:
        lines = list(file)
      write_whole(path, b''.join(line for line in lines if not _of_evaluation(line, step)))


def _of_evaluation(line: bytes, step: int) -> bool:
  try:
    found = json.loads(line)
    return (found['step'], found['split']) == (step, 'eval')
  except (ValueError, KeyError, TypeError):
    return False
