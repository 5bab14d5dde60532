"""Recovery of a run after a fault or a loss spike.

Rolling back to a checkpoint before a loss spike and skipping the batches of the spike follows PaLM
(Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, section 5.1).
"""

import contextlib
import json
import logging

from t2x.base.errors import UserError
from t2x.base.files import write_atomically
from t2x.data import Batches, Skipping
from t2x.train.faults import Fault, Spike
from t2x.train.run import TrainingRun

__all__ = ['Diverged']

log = logging.getLogger('t2x')


class Diverged(UserError):
  """A run that was ended by a non-finite loss or gradient, or by too many loss spikes.

  Attributes:
    reason: short description of the cause.
  """

  def __init__(self, reason: str, advice: str):
    super().__init__(f'{reason}; {advice}', exit_code=1)
    self.reason = reason.partition(';')[0]


def read_skips(run: TrainingRun) -> list[tuple[int, int]]:
  """Reads (step, number of batches skipped after it) for each rollback of the run."""
  path = run.folder / 'skips.json'
  return [(step, count) for step, count in json.loads(path.read_text())] if path.exists() else []


def roll_back(run: TrainingRun, spike: Spike, skips: list[tuple[int, int]]) -> None:
  """Removes the checkpoints since the spike started and records its batches as skipped.

  Raises:
    Diverged: the run has no rollback left, or no intact checkpoint from before the spike.
  """
  rollback = run.trainer.rollback
  if rollback is None or len(skips) >= rollback.limit:
    raise Diverged(f'{spike} after {len(skips)} rollbacks', 'try a lower learning rate') from spike
  run.checkpoints.wait()  # The last checkpoint may still be being written.
  good = run.checkpoints.intact_before(spike.first)
  if good is None and (saved := run.checkpoints.steps()):
    raise Diverged(
      f'{spike}, before which no checkpoint is left: the first is of step {saved[0]}',
      'increase Trainer.checkpoint_every or keep_last, or try a lower learning rate',
    ) from spike
  good = good or 0
  run.checkpoints.remove_after(good)
  run.processes.barrier()
  skips = [*skips, (spike.first - 1, spike.last - spike.first + 1)]
  if run.processes.first:
    write_atomically(run.folder / 'skips.json', json.dumps(skips).encode())
  run.processes.barrier()
  log.warning('%s: rolling back to step %d and skipping the batches of the spike', spike, good)


def record_fault(
  run: TrainingRun, batches: Batches, fault: Fault, skips: list[tuple[int, int]]
) -> Diverged:
  """Writes the rows of the faulty step to fault-STEP.json. Returns the error to raise."""
  source_step = Skipping(batches, skips).source_step(fault.step - 1)
  epochs, rows = batches.global_indices(source_step)
  path = run.folder / f'fault-{fault.step}.json'
  if run.processes.first:
    source = {'source_step': source_step, 'epochs': epochs.tolist(), 'rows': rows.tolist()}
    path.write_text(json.dumps(fault.details | source, indent=2) + '\n')
  with contextlib.suppress(UserError):
    run.checkpoints.wait()
  last = run.checkpoints.latest_step()
  good = 'no checkpoint yet' if last is None else f'the last checkpoint is of step {last}'
  return Diverged(
    str(fault),
    f'{good}; the rows of the batch are listed in {path}. Try a lower learning rate, a longer warm-up, '
    'or Trainer.nonfinite = @Skip()',
  )
