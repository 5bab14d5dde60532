"""What a run does about a fault or a kill: goes back before a spike, notes the batch of a fault, drops
the lines of an evaluation that was cut off."""

import contextlib
import json
import logging

from t2x.data import Batches, Skipping
from t2x.errors import UserError
from t2x.files import write_whole
from t2x.train.faults import Fault, Spike
from t2x.train.run import Run

__all__ = ['Diverged', 'forget_evaluation', 'go_back', 'kept_for_replay', 'skips_of']

log = logging.getLogger('t2x')


class Diverged(UserError):
  """A loss or gradient that was not finite, or leapt too often, ended the run. `reason` is brief."""

  def __init__(self, reason: str, advice: str):
    super().__init__(f'{reason}; {advice}', exit_code=1)
    self.reason = reason.partition(';')[0]


def skips_of(run: Run) -> list[tuple[int, int]]:
  """(step, batches left out from there on) of each time that the run went back."""
  path = run.folder / 'skips.json'
  return [(step, count) for step, count in json.loads(path.read_text())] if path.exists() else []


def go_back(run: Run, spike: Spike, skips: list[tuple[int, int]]) -> None:
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
  run: Run, batches: Batches, fault: Fault, skips: list[tuple[int, int]]
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


def forget_evaluation(run: Run, step: int) -> None:
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
